# a TCP and an iSER session on one LUN at once, fio verify on both halves, data of one seen by the other
start_iserd --lun ram:256MiB
login iser $IQN; login tcp $IQN
disk_of $IQN 0 iser; a=$DISK
disk_of $IQN 0 tcp; b=$DISK
[ "$a" != "$b" ] || fail "one disk for two sessions"
step "fio on $a (iSER) and $b (TCP) at once"
fio_verify "$a" --offset=0 & p=$!
fio_verify "$b" --offset=128m || fail "fio over TCP: $(fio_why "$b")"
wait $p || fail "fio over iSER: $(fio_why "$a")"
step "what one writes the other reads, both ways"
there_and_back() { # FROM TO SEEK
	head -c 1048576 /dev/urandom >"$WORK/pat"
	want "write $1" dd if="$WORK/pat" of="$1" bs=64k seek="$3" oflag=direct conv=notrunc status=none
	want "read $2" dd if="$2" of="$WORK/got" bs=64k skip="$3" count=16 iflag=direct status=none
	cmp "$WORK/pat" "$WORK/got" || fail "$1 and $2 show different data"
}
there_and_back "$a" "$b" 3200
there_and_back "$b" "$a" 3300
logout iser $IQN; logout tcp $IQN
stop_iserd
