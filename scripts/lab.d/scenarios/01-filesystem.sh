# discovery over TCP and iSER, login by ib_iser, mkfs.ext4, 64 MiB of files, logout, login, checksums equal
start_iserd --lun ram:256MiB
step "discovery over TCP, then over iSER"
iscsiadm -m discovery -t st -p $ADDR:$PORT >"$OUT/disc-tcp" 2>&1 || fail "discovery over TCP: $(tail -1 "$OUT/disc-tcp")"
grep -q "$ADDR:$PORT,1 $IQN" "$OUT/disc-tcp" || fail "TCP discovery lacks the target: $(cat "$OUT/disc-tcp")"
iscsiadm -m node -o delete >/dev/null 2>&1
iscsiadm -m discovery -t st -p $ADDR:$PORT -I lab-iser >"$OUT/disc-iser" 2>&1 || fail "discovery over iSER: $(tail -1 "$OUT/disc-iser")"
grep -q "$ADDR:$PORT,1 $IQN" "$OUT/disc-iser" || fail "iSER discovery lacks the target: $(cat "$OUT/disc-iser")"
iscsiadm -m node -o delete >/dev/null 2>&1
step "login by ib_iser"
login iser $IQN
iscsiadm -m session -P 3 >"$OUT/session" 2>&1
grep -q 'Iface Transport: iser' "$OUT/session" || fail "the session is not iSER: $(grep Transport "$OUT/session")"
disk_of $IQN 0
step "mkfs.ext4 $DISK, 64 MiB of files"
want "mkfs.ext4" mkfs.ext4 -q -F "$DISK"
mkdir -p /tmp/mnt; want "mount" mount "$DISK" /tmp/mnt
for i in $(seq 16); do head -c 4194304 /dev/urandom >/tmp/mnt/f$i || fail "write file $i"; done
(cd /tmp/mnt && sha256sum f*) >/tmp/sums
want "umount" umount /tmp/mnt
logout iser $IQN
step "login again, compare"
login iser $IQN; disk_of $IQN 0
want "mount" mount "$DISK" /tmp/mnt
(cd /tmp/mnt && sha256sum -c --quiet /tmp/sums) || fail "checksums differ"
want "umount" umount /tmp/mnt
want "fsck" fsck.ext4 -fn "$DISK"
logout iser $IQN
stop_iserd
