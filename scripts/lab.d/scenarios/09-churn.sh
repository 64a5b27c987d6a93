# 500 logins and logouts by libiscsi and by the kernel, and 100 connects that never log in: everything is back to the start
CYCLES=${CYCLES:-$([ "$LAB_ON" = qemu ] && [ "$SLOW" -gt 1 ] && echo 40 || echo 500)}
start_iserd --lun ram:64MiB
counts() { # goroutines, descriptors, RDMA objects, buffers
	local line; line=$(stats) || fail "no counters"
	echo "goroutines $(stat_of goroutines "$line") fds $(ls /proc/$ISERD_PID/fd | wc -l) sessions $(stat_of sessions "$line")" \
		"connections $(stat_of connections "$line") in_login $(stat_of in_login "$line") qps $(stat_of qps "$line")" \
		"kernel_qps $(rdma_count qp) kernel_mrs $(rdma_count mr) kernel_cm_ids $(rdma_count cm_id)" \
		"buffers $(stat_of buffers_in_use "$line") recv $(stat_of recv_posted "$line") pool_free $(stat_of pool_free "$line")" \
		"tcp $(stat_of tcp_buffer_bytes "$line")"
}
by_libiscsi() { # TRANSPORT-SCHEME. Its own crash at the end of an iSER connection is not the daemon's (see suite.sh).
	local try
	for try in 1 2 3 4 5; do
		libiscsi iscsi-inq "$1://$ADDR:$PORT/$IQN/0" >"$WORK/inq" 2>&1 && return
		case $? in 134 | 139) ;; *) break ;; esac
	done
	fail "login over $1: $(tail -1 "$WORK/inq")"
}
by_kernel() { login "$1" $IQN; logout "$1" $IQN; }
for i in 1 2 3; do by_libiscsi iscsi; by_libiscsi iser; by_kernel iser; by_kernel tcp; done
sleep $((2 * (SLOW > 1 ? 5 : 1))); before=$(counts)
step "$CYCLES cycles; before: $before"
# Two of ten by the kernel: it takes longer to build a disk than to log in.
for i in $(seq $((CYCLES / 10))); do
	for j in 1 2 3 4; do by_libiscsi iscsi; by_libiscsi iser; done
	by_kernel iser; by_kernel tcp
done
step "100 connects that never log in"
pids=
for i in $(seq 100); do timeout 60 bash -c "exec 3<>/dev/tcp/$ADDR/$PORT; sleep 60" 2>/dev/null & pids="$pids $!"; done
sleep 3
held=$(ls /proc/$ISERD_PID/fd | wc -l)
step "beside them ($held descriptors) others log in"
by_libiscsi iscsi; by_libiscsi iser
start=$(msec)
same() { after=$(counts); [ "$after" = "$before" ]; }
end=$(($(date +%s) + 50 * SLOW))
until same; do [ "$(date +%s)" -lt $end ] || fail "before: $before; after: $after"; sleep 1; done
step "after: $after"
kill $pids 2>/dev/null
note "$CYCLES cycles; silent connections ended after $((($(msec) - start) / 1000)) s; $after"
stop_iserd
