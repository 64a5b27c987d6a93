# SIGTERM: the initiator sees the end of its session in under a second, idle and under load, and the daemon ends
seen_after() { # TRANSPORT: sets SEEN and ENDED
	local t state
	t=$(msec)
	kill -TERM $ISERD_PID
	while :; do
		state=$(cat /sys/class/iscsi_session/session*/state 2>/dev/null)
		[[ $state == *LOGGED_IN* ]] || break
		[ $(($(msec) - t)) -lt $((5000 * SLOW)) ] || fail "$1: the session is still logged in after 5 s"
	done
	SEEN=$(($(msec) - t))
	wait $ISERD_PID; code=$?; ISERD_PID=; ENDED=$(($(msec) - t))
	[ $code = 0 ] || fail "$1: the daemon ended with status $code"
	[ $SEEN -lt $((1000 * SLOW)) ] || fail "$1: the initiator saw it after $SEEN ms"
	[ $ENDED -lt $((3000 * SLOW)) ] || fail "$1: the daemon took $ENDED ms"
	note "$1: seen after $SEEN ms, ended after $ENDED ms"
}
if iscsiadm -m session 2>/dev/null | grep -vq "$IQN"; then skip "this host has other iSCSI sessions"; fi
for tr in iser tcp; do
	start_iserd --lun ram:64MiB
	login $tr $IQN; disk_of $IQN 0
	step "SIGTERM, $tr session idle"
	seen_after $tr
	# The session waits for the target to come back: it does, and then it can log out.
	start_iserd --lun ram:64MiB
	wait_for 30 "the session's return" grep -q LOGGED_IN /sys/class/iscsi_session/session*/state
	logout $tr $IQN
	stop_iserd
done
start_iserd --lun ram:64MiB
login iser $IQN; disk_of $IQN 0
step "SIGTERM under load"
fio_verify "$DISK" --time_based --runtime=12 >/dev/null 2>&1 & p=$!
sleep 3
seen_after "iser under load"
start_iserd --lun ram:64MiB
# A RAM LUN comes back empty, so fio's verdict is void here; that it ends is not.
DMESG_OK='I/O error'
wait_for 60 "the end of fio" eval "! kill -0 $p"
logout iser $IQN
stop_iserd
