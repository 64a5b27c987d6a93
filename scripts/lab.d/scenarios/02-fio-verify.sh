# fio randrw with crc32c over 4k-1M at depth 32 by ib_iser, on a RAM and a file LUN, no error
start_iserd --lun ram:128MiB --lun "file:$WORK/disk.img,size=128MiB"
login iser $IQN
for lun in 0 1; do
	disk_of $IQN $lun
	step "fio on LUN $lun, $DISK"
	fio_verify "$DISK" || fail "fio on LUN $lun: $(fio_why "$DISK")"
	note "LUN $lun: $(fio_rates "$DISK")"
done
logout iser $IQN
stop_iserd
