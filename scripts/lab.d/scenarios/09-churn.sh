# 500 logins and logouts, and 100 connects that never log in: everything is back to the start
CYCLES=${CYCLES:-$([ "$LAB_ON" = qemu ] && echo 20 || echo 500)}
start_iserd --lun ram:64MiB
counts() { # goroutines, descriptors, queue pairs, buffers
	echo "goroutines $(stat_of goroutines) fds $(ls /proc/$ISERD_PID/fd | wc -l) qps $(stat_of qps) buffers $(stat_of buffers_in_use) tcp $(stat_of tcp_buffer_bytes)"
}
export LIBISCSI_DEBUG=0
one() { iscsi-inq "iscsi://$ADDR:$PORT/$IQN/0" >/dev/null 2>&1 || fail "TCP login $1"; }
iser() { iscsi-inq "iser://$ADDR:$PORT/$IQN/0" >/dev/null 2>&1 || fail "iSER login $1"; }
for i in 1 2 3; do one $i; iser $i; done
sleep 2; before=$(counts)
step "$CYCLES cycles; before: $before"
for i in $(seq $((CYCLES / 2))); do one $i; iser $i; done
step "100 connects that never log in"
for i in $(seq 100); do timeout 30 bash -c "exec 3<>/dev/tcp/$ADDR/$PORT; sleep 25" & done 2>/dev/null
sleep 3
one "beside silent connections"; iser "beside silent connections"
wait_for 40 "the end of silent connections" eval '[ "$(ls /proc/$ISERD_PID/fd | wc -l)" -le "$(echo "$before" | sed "s/.*fds \([0-9]*\).*/\1/")" ]'
sleep 2; after=$(counts)
step "after: $after"
[ "$before" = "$after" ] || fail "before: $before; after: $after"
note "$CYCLES cycles; $after"
