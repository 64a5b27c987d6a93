# discovery over TCP and iSER, login by ib_iser, mkfs.ext4, 64 MiB of files, logout, login, checksums equal
start_iserd --lun ram:256MiB
for tr in tcp iser; do
	step "discovery over $tr"
	discover $tr >"$OUT/discovery-$tr" || fail "discovery over $tr: $(tail -1 "$OUT/discovery-$tr")"
	grep -qF "$ADDR:$PORT,1 $IQN" "$OUT/discovery-$tr" || fail "discovery over $tr lacks the target: $(cat "$OUT/discovery-$tr")"
done
step "login by ib_iser"
login iser $IQN
iscsiadm -m session -P 3 >"$OUT/session" 2>&1
grep -q 'Iface Transport: iser' "$OUT/session" || fail "the session is not iSER: $(grep Transport "$OUT/session")"
disk_of $IQN 0
step "mkfs.ext4 $DISK, 64 MiB of files"
want "mkfs.ext4" mkfs.ext4 -q -F "$DISK"
mkdir -p "$WORK/mnt"; want "mount" mount "$DISK" "$WORK/mnt"
for i in $(seq 16); do head -c 4194304 /dev/urandom >"$WORK/mnt/f$i" || fail "write file $i"; done
(cd "$WORK/mnt" && sha256sum f*) >"$WORK/sums"
want "umount" umount "$WORK/mnt"
logout iser $IQN
[ -z "$(disks $IQN)" ] || fail "the disk is still there after the logout"
step "login again, compare"
login iser $IQN; disk_of $IQN 0
want "mount" mount "$DISK" "$WORK/mnt"
(cd "$WORK/mnt" && sha256sum -c --quiet "$WORK/sums") || fail "checksums differ"
[ "$(wc -l <"$WORK/sums")" = 16 ] || fail "not every file was summed"
want "umount" umount "$WORK/mnt"
want "fsck" fsck.ext4 -fn "$DISK"
logout iser $IQN
stop_iserd
