# The network between ib_iser on rxe and iserd on softroce is down: for 5 s, and I/O goes on; for 60 s, and both ends give up cleanly
DMESG_OK='I/O error|detected conn error|ping timeout|queue full'
softroce_up
start_softroce --lun ram:64MiB
login iser $IQN $SR_ADDR
disk_of $IQN 0
step "5 s"
dd if="$DISK" of="$WORK/read" bs=64k count=512 iflag=direct status=none & reader=$!
sleep 0.2; netem loss 100%; sleep 5; netem
want "the read goes on after 5 s without a network" wait $reader
want "write" dd if=/dev/urandom of="$WORK/w" bs=1M count=8 status=none
want "write to the disk" dd if="$WORK/w" of="$DISK" bs=1M oflag=direct status=none
[ "$(dd if="$DISK" bs=1M count=8 iflag=direct status=none | md5sum)" = "$(md5sum <"$WORK/w")" ] || fail "the disk has other bytes"
step "60 s"
netem loss 100%
timeout 100 dd if="$DISK" of=/dev/null bs=4k count=1 iflag=direct status=none & reader=$!
sleep 60
grep -q 'session lost' "$OUT/iserd.log" || fail "the target did not give the session up"
kernel_log | grep -qaE 'ping timeout|detected conn error' || fail "the initiator did not give the connection up"
netem
wait $reader && note "the read of the outage ended well" || note "the read of the outage ended with an error"
again() { dd if="$DISK" bs=1M count=8 iflag=direct status=none 2>/dev/null | cmp -s - "$WORK/w"; }
wait_for 60 "the session's recovery" again
logout iser $IQN $SR_ADDR
stop_iserd
