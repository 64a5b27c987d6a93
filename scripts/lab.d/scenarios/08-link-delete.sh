# the RDMA link goes away under load: the daemon lives, and serves again when the link is back
DMESG_OK='I/O error|session recovery|iser_|Buffer I/O'
start_iserd --lun ram:96MiB
login iser $IQN; disk_of $IQN 0
fio_verify "$DISK" --time_based --runtime=40 >/dev/null 2>&1 & p=$!
sleep 3
step "rdma link delete"
rdma_down || fail "the link cannot be deleted"
sleep 3
kill -0 $ISERD_PID 2>/dev/null || fail "the daemon died with the link"
step "TCP goes on meanwhile"
want "TCP discovery" iscsiadm -m discovery -t st -p $ADDR:$PORT
step "the link is back"
rdma_up
wait_for 20 "iSER discovery" iscsiadm -m discovery -t st -p $ADDR:$PORT -I lab-iser
wait $p || fail "fio saw an error"
logout iser $IQN
