# kill -9 of the daemon under fio verify on a file LUN, restart within 10 s: no error, no wrong byte
DMESG_OK='session recovery|connection.*error|iser_'
args=(--lun file:/tmp/lab-kill.img,size=128MiB)
start_iserd "${args[@]}"
login iser $IQN; disk_of $IQN 0
fio_verify "$DISK" --time_based --runtime=$((25 * (SLOW > 1 ? 2 : 1))) & p=$!
for round in 1 2; do
	sleep 4
	step "kill -9, round $round"
	kill -9 $ISERD_PID; wait $ISERD_PID 2>/dev/null; ISERD_PID=
	kill -0 $p 2>/dev/null || fail "fio ended with the daemon"
	sleep 2
	start_iserd "${args[@]}"
done
wait $p || fail "fio saw an error: $(grep -m1 -iE 'err=|verify:' "$OUT/fio-$(basename "$DISK").log")"
logout iser $IQN
rm -f /tmp/lab-kill.img
