# discovery, login and fio verify by ib_iser over IPv6
start_iserd --lun ram:96MiB
iscsiadm -m discovery -t st -p "[$ADDR6]:$PORT" >"$OUT/disc6" 2>&1 || fail "discovery: $(tail -1 "$OUT/disc6")"
grep -qF "[$ADDR6]:$PORT,1 $IQN" "$OUT/disc6" || fail "discovery lacks the IPv6 portal: $(cat "$OUT/disc6")"
iscsiadm -m node -o delete >/dev/null 2>&1
login iser $IQN $ADDR6
iscsiadm -m session -P 3 | grep -q 'Iface Transport: iser' || fail "not iSER"
disk_of $IQN 0
want "fio" fio_verify "$DISK" --size=32m
logout iser $IQN $ADDR6
