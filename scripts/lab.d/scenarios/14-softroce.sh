# iserd on RoCEv2 in user space, in a namespace without RDMA: ib_iser on rxe logs in, mkfs, fio verify 4k-1M, no error
softroce_up
start_softroce --lun ram:192MiB --lun "file:$WORK/disk.img,size=128MiB"
discover iser $SR_ADDR | grep -q "$IQN" || fail "no discovery over iSER"
login iser $IQN $SR_ADDR
want "the session is iSER" sh -c "iscsiadm -m session -P 3 | grep -q 'Iface Transport: iser'"
disk_of $IQN 0
step "mkfs, write, read"
want "mkfs" mkfs.ext4 -q -F "$DISK"
mkdir -p "$WORK/mnt"; want "mount" mount "$DISK" "$WORK/mnt"
want "write" dd if=/dev/urandom of="$WORK/mnt/a" bs=1M count=32 conv=fsync status=none
sum=$(md5sum <"$WORK/mnt/a"); want "umount" umount "$WORK/mnt"
want "mount" mount "$DISK" "$WORK/mnt"
[ "$(md5sum <"$WORK/mnt/a")" = "$sum" ] || fail "the file has changed"
want "umount" umount "$WORK/mnt"; want "fsck" fsck.ext4 -fn "$DISK" >/dev/null
for lun in 0 1; do
	disk_of $IQN $lun
	step "fio on LUN $lun, $DISK"
	fio_verify "$DISK" || fail "fio on LUN $lun: $(fio_why "$DISK")"
	note "LUN $lun: $(fio_rates "$DISK")"
done
logout iser $IQN $SR_ADDR
step "IPv6"
login iser $IQN $SR_ADDR6; disk_of $IQN 0
want "read over IPv6" dd if="$DISK" of=/dev/null bs=1M count=32 iflag=direct status=none
logout iser $IQN $SR_ADDR6
s=$(stats); echo "$s"
stop_iserd
