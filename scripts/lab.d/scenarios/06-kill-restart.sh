# kill -9 of the daemon under fio verify on a file LUN, restart within 10 s: no error, no wrong byte
args=(--lun "file:$WORK/kill.img,size=128MiB")
start_iserd "${args[@]}"
login iser $IQN; disk_of $IQN 0
fio_verify "$DISK" --time_based --runtime=$((SLOW > 1 ? 60 : 30)) & p=$!
for down in 2 8; do
	sleep $((SLOW > 1 ? 15 : 4))
	step "kill -9, back after $down s"
	kill -9 $ISERD_PID; wait $ISERD_PID 2>/dev/null; ISERD_PID=
	kill -0 $p 2>/dev/null || fail "fio ended before the daemon: $(fio_why "$DISK")"
	sleep $down
	start_iserd "${args[@]}"
done
kill -0 $p 2>/dev/null || fail "fio ended early: $(fio_why "$DISK")"
step "fio to its end"
wait $p || fail "fio saw an error: $(fio_why "$DISK")"
logout iser $IQN
stop_iserd
