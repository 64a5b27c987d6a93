# fio randrw with crc32c over 4k-1M at depth 32 by ib_iser, on a RAM and a file LUN, no error
start_iserd --lun ram:128MiB --lun file:/tmp/lab-disk.img,size=128MiB
login iser $IQN
for lun in 0 1; do
	disk_of $IQN $lun
	step "fio on LUN $lun, $DISK"
	want "fio on LUN $lun" fio_verify "$DISK"
	note "LUN $lun $(grep -E '^ *(read|write):' "$OUT/fio-$(basename "$DISK").log" | head -2 | sed -E 's/.*(IOPS=[^,]*),.*/\1/' | tr '\n' ' ')"
done
logout iser $IQN
rm -f /tmp/lab-disk.img
