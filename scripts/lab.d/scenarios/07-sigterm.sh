# SIGTERM: the initiator sees the end of its session in under a second, and the daemon ends
start_iserd --lun ram:64MiB
login iser $IQN; disk_of $IQN 0
state() { iscsiadm -m session -P 1 | sed -n 's/.*iSCSI Session State: //p' | head -1; }
[ "$(state)" = LOGGED_IN ] || fail "state $(state)"
t=$(msec)
kill -TERM $ISERD_PID
until [ "$(cat /sys/class/iscsi_session/session*/state 2>/dev/null | head -1)" != LOGGED_IN ]; do
	[ $(( $(msec) - t )) -lt $((5000 * SLOW)) ] || fail "the session is still logged in after 5 s"
done
seen=$(( $(msec) - t ))
wait $ISERD_PID; code=$?; ISERD_PID=; ended=$(( $(msec) - t ))
[ $code = 0 ] || fail "the daemon ended with status $code"
[ $seen -lt $((1000 * SLOW)) ] || fail "the initiator saw it after $seen ms"
[ $ended -lt $((3000 * SLOW)) ] || fail "the daemon took $ended ms"
note "seen after $seen ms, ended after $ended ms"
iscsiadm -m node -u >/dev/null 2>&1 &
sleep 1
