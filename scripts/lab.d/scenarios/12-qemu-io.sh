# qemu-img info and a qemu-io write, read, compare, on both transports
start_iserd --lun ram:64MiB
for u in "iscsi://$ADDR:$PORT/$IQN/0" "iser://$ADDR:$PORT/$IQN/0"; do
	step "$u"
	qemu-img info "$u" >/tmp/info 2>&1 || fail "qemu-img info $u: $(tail -1 /tmp/info)"
	grep -q 'virtual size: 64 MiB' /tmp/info || fail "size: $(grep virtual /tmp/info)"
	qemu-io -f raw -c "write -P 0x5a 0 256k" -c "write -P 0x33 3M 64k" -c "write -P 0x77 4M 512" -c "read -P 0x5a 0 256k" \
		-c "read -P 0x33 3M 64k" -c "read -P 0x77 4M 512" -c "read -P 0 5M 64k" "$u" >/tmp/qio 2>&1 || fail "qemu-io $u: $(tail -1 /tmp/qio)"
	grep -qiE 'verification failed|error' /tmp/qio && fail "$u: $(grep -m1 -iE 'verification|error' /tmp/qio)"
	[ "$(grep -cE '^(read|wrote)' /tmp/qio)" = 7 ] || fail "$u: not every command ran"
done
