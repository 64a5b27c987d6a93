# qemu-img info and a qemu-io write, read, compare, on both transports, RAM and file
start_iserd --lun ram:64MiB --lun "file:$WORK/q.img,size=64MiB"
for u in "iscsi://$ADDR:$PORT/$IQN" "iser://$ADDR:$PORT/$IQN"; do
	for lun in 0 1; do
		step "$u/$lun"
		why=$(qemu_io "$u/$lun") || fail "$u/$lun: $why"
	done
done
# What QEMU wrote is in the file.
[ "$(head -c 4096 "$WORK/q.img" | tr -d '\132' | wc -c)" = 0 ] || fail "the file does not hold what was written"
stop_iserd
