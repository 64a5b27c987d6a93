# discovery over TCP and iSER, login and fio verify by ib_iser over IPv6; wildcard listeners as well
start_iserd --lun ram:96MiB
for tr in tcp iser; do
	discover $tr $ADDR6 >"$OUT/discovery-$tr" || fail "discovery over $tr: $(tail -1 "$OUT/discovery-$tr")"
	grep -qF "[$ADDR6]:$PORT,1 $IQN" "$OUT/discovery-$tr" || fail "discovery over $tr lacks the IPv6 portal: $(cat "$OUT/discovery-$tr")"
done
login iser $IQN $ADDR6
iscsiadm -m session -P 3 | grep -q 'Iface Transport: iser' || fail "not iSER"
disk_of $IQN 0
step "fio over IPv6"
fio_verify "$DISK" --size=32m || fail "fio: $(fio_why "$DISK")"
logout iser $IQN $ADDR6
stop_iserd
step "wildcard listeners answer with the address that was asked"
start_iserd --listen "0.0.0.0:$PORT" --listen "[::]:$PORT" --lun ram:96MiB
for a in $ADDR $ADDR6; do
	discover iser $a >"$OUT/discovery-wild" || fail "discovery at $a: $(tail -1 "$OUT/discovery-wild")"
	grep -qF "$(hostport $a $PORT),1 $IQN" "$OUT/discovery-wild" || fail "discovery at $a does not name it: $(cat "$OUT/discovery-wild")"
done
stop_iserd
