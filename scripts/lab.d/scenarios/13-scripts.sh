# scripts/rxe and scripts/initiator as a user runs them: link, discovery, login over both transports, fio job, logout
rdma_down
ip link set labv0 mtu 1500; ip link set labv1 mtu 1500
scripts/rxe up labv0 >"$WORK/rxe" 2>&1 || fail "rxe up: $(cat "$WORK/rxe")"
grep -q 'MTU 1500' "$WORK/rxe" || fail "rxe up says nothing of the MTU: $(cat "$WORK/rxe")"
want "rxe up again" scripts/rxe up labv0
want "rxe status" scripts/rxe status
start_iserd --lun ram:512MiB
scripts/initiator discover "$ADDR" | grep -q "$IQN" || fail "discover over iSER"
scripts/initiator discover --transport tcp "[$ADDR6]:$PORT" | grep -q "$IQN" || fail "discover over TCP and IPv6"
for tr in iser tcp; do
	step "$tr"
	scripts/initiator login --transport $tr "$ADDR:$PORT" $IQN || fail "login over $tr"
	disk_of $IQN 0
	scripts/initiator status | grep -q "$IQN.* $tr .*$DISK" || fail "status shows no $tr session: $(scripts/initiator status)"
	refuse "a writing job without --yes" scripts/initiator fio verify "$DISK" --size=16m
	want "fio" scripts/initiator fio --yes verify "$DISK" --size=16m
	want "logout" scripts/initiator logout $IQN
	scripts/initiator status | grep -q 'no session' || fail "a session is left"
	iscsiadm -m node -T $IQN -o delete >/dev/null 2>&1
done
refuse "login to a target that is not there" scripts/initiator login $ADDR ${IQN}nope
stop_iserd
want "rxe down" scripts/rxe down labv0
refuse "rxe down again" scripts/rxe down labv0
