# a TCP and an iSER session on one LUN at once, fio verify on both halves, data of one seen by the other
start_iserd --lun ram:256MiB
login iser $IQN; login tcp $IQN
disk_of $IQN 0 iser; a=$DISK
disk_of $IQN 0 tcp; b=$DISK
[ "$a" != "$b" ] || fail "one disk for two sessions"
step "fio on $a (iSER) and $b (TCP) at once"
fio_verify "$a" --offset=0 & p=$!
fio_verify "$b" --offset=128m || fail "fio over TCP"
wait $p || fail "fio over iSER"
step "what one writes the other reads"
head -c 1048576 /dev/urandom >/tmp/pat
want "write over iSER" dd if=/tmp/pat of="$a" bs=64k seek=3200 oflag=direct conv=notrunc status=none
want "read over TCP" dd if="$b" of=/tmp/got bs=64k skip=3200 count=16 iflag=direct status=none
cmp /tmp/pat /tmp/got || fail "the sessions see different data"
logout iser $IQN; logout tcp $IQN
