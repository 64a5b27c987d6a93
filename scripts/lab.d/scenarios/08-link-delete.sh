# the RDMA link goes away under load: the daemon lives, TCP goes on, and iSER serves again when the link is back
LOG_OK='RDMA device cannot be used'
start_iserd --lun ram:96MiB
login iser $IQN; disk_of $IQN 0
fio_verify "$DISK" --time_based --runtime=$((20 * (SLOW > 1 ? 3 : 1))) & p=$!
for round in 1 2; do
	sleep $((SLOW > 1 ? 12 : 3))
	step "rdma link delete, round $round"
	timeout $((30 * SLOW)) rdma link delete labrxe0 || fail "the link cannot be deleted"
	rdma link show labrxe0/1 2>/dev/null && fail "the link is still there: the daemon holds it"
	sleep 3
	kill -0 $ISERD_PID 2>/dev/null || fail "the daemon died with the link"
	step "TCP goes on meanwhile"
	discover tcp | grep -qF "$IQN" || fail "no TCP discovery without the link"
	step "the link is back"
	rdma_up
	wait_for 20 "iSER discovery" discover iser
done
step "fio to its end"
wait $p || fail "fio saw an error: $(fio_why "$DISK")"
logout iser $IQN
stop_iserd
