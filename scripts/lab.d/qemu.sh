#!/usr/bin/env bash
# qemu.sh prepare | run SCRIPT | shell SCRIPT: the distribution's own kernel under QEMU. This machine's root is the guest's,
# by 9p and read-only, under an overlay on tmpfs: every program installed here is there, nothing written there stays, /out
# (the folder OUT) excepted. No network card: veth inside the guest is enough.
set -u
cache=${XDG_CACHE_HOME:-$HOME/.cache}/iserd-lab; mkdir -p "$cache"
say() { echo "lab: $*" >&2; }

# find_image: sets KVER, VMLINUZ, MODULES. A kernel of this machine with soft-RoCE, or the distribution's package.
find_image() {
	local v pkg
	for v in /lib/modules/*/; do
		v=$(basename "$v")
		if [ -r "/boot/vmlinuz-$v" ] && grep -qs '/rdma_rxe\.ko' "/lib/modules/$v/modules.dep" && grep -qs '/ib_iser\.ko' "/lib/modules/$v/modules.dep"; then
			KVER=$v VMLINUZ=/boot/vmlinuz-$v MODULES=/
			return
		fi
	done
	pkg=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -1)
	[ -n "$pkg" ] || { say "no kernel here with rdma_rxe and ib_iser, and apt knows no linux-image-amd64 (apt-get update?)"; return 1; }
	KVER=${pkg#linux-image-} MODULES=$cache/$pkg VMLINUZ=$cache/$pkg/boot/vmlinuz-${pkg#linux-image-}
	[ -f "$MODULES/complete" ] && return
	say "downloading $pkg"
	local t; t=$(mktemp -d "$cache/get.XXXXXX")
	chmod 755 "$t"
	(cd "$t" && apt-get download "$pkg" >log 2>&1 && dpkg -x ./*.deb root) || { say "cannot get $pkg: $(tail -1 "$t/log")"; rm -rf "$t"; return 1; }
	/sbin/depmod -b "$t/root" "$KVER" || { rm -rf "$t"; return 1; }
	touch "$t/root/complete"; rm -rf "$MODULES"; mv "$t/root" "$MODULES"; rm -rf "$t"
}

# make_initrd: busybox, and the modules that the guest needs to see its root.
make_initrd() {
	INITRD=$cache/initrd-$KVER-$(cat "$0" scripts/lab.d/qemu-init | sha256sum | cut -c1-12).gz
	[ -f "$INITRD" ] && return
	local d m f bb; d=$(mktemp -d)
	bb=$(command -v busybox) || { say "busybox is missing: apt-get install busybox-static"; return 1; }
	mkdir -p "$d"/{bin,proc,sys,dev,m,low,up,new}
	cp "$bb" "$d/bin/busybox"
	cp scripts/lab.d/qemu-init "$d/init"; chmod 755 "$d/init"
	for m in virtio_pci 9pnet_virtio 9p overlay; do
		/sbin/modprobe -d "$MODULES" -S "$KVER" --show-depends "$m" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
	done | awk '!seen[$0]++' >"$d/list"
	[ -s "$d/list" ] || { say "no virtio or 9p modules for $KVER"; return 1; }
	while read -r f; do
		m=$(basename "$f")
		case $f in
		*.xz) xz -dc "$f" >"$d/m/${m%.xz}"; m=${m%.xz} ;;
		*.zst) zstd -qdc "$f" >"$d/m/${m%.zst}"; m=${m%.zst} ;;
		*) cp "$f" "$d/m/" ;;
		esac
		echo "$m" >>"$d/m/order"
	done <"$d/list"
	rm "$d/list"
	(cd "$d" && find . | cpio -o -H newc --quiet | gzip -1) >"$INITRD.$$" && mv "$INITRD.$$" "$INITRD"
	rm -rf "$d"
}

boot() { # ACCEL LIMIT APPEND QEMU-ARGS...
	local accel=$1 limit=$2 append=$3 cpu=max; shift 3
	[ "$accel" != kvm ] || cpu=host
	timeout -k 5 "$limit" qemu-system-x86_64 -M q35 -accel "$accel" -cpu $cpu -nic none -nodefaults -no-reboot -display none \
		-kernel "$VMLINUZ" -initrd "$INITRD" -append "console=ttyS0 panic=-1 mitigations=off quiet $append" "$@"
}

# pick_accel: KVM where a guest really boots; the device file alone proves nothing. Sets ACCEL.
pick_accel() {
	ACCEL=tcg,thread=multi
	[ -w /dev/kvm ] || return 0
	local t; t=$(mktemp)
	boot kvm 5 "lab.probe" -m 256M -serial "file:$t" </dev/null >/dev/null 2>&1
	grep -q LAB-PROBE "$t" && ACCEL=kvm
	rm -f "$t"
}

memory() { # MiB: 6 GiB, or half of what the machine has
	local half=$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) / 2048))
	echo $((half < 6144 ? half : 6144))
}

find_image && make_initrd || exit 1
pick_accel
case ${1:-} in
prepare) echo "qemu $KVER, ${ACCEL%%,*}"; exit 0 ;;
run | shell) ;;
*) say "qemu.sh: prepare, run or shell"; exit 2 ;;
esac
OUT=$(readlink -f "$OUT")
if [ "$ACCEL" = kvm ]; then echo 1 >"$OUT/.slow"; else echo 8 >"$OUT/.slow"; fi
printf 'SCRIPT=%q\nMODULES=%q\nKVER=%q\n' "$2" "$MODULES" "$KVER" >"$OUT/.boot"
rm -f "$OUT/.exit"
serial="file:$OUT/console.log" stdin=/dev/null
[ "$1" = run ] || { serial=stdio; stdin=/dev/stdin; }
# multidevs=remap: without it files of /, /proc, /dev and /sys with one inode number are one file to the guest.
boot "$ACCEL" "${LIMIT:-1500}" "lab.$1" -smp 1 -m "$(memory)M" -serial "$serial" -device virtio-rng-pci \
	-virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
	-virtfs "local,path=$OUT,mount_tag=out,security_model=none,multidevs=remap" <$stdin
if [ ! -s "$OUT/.exit" ]; then say "the guest did not finish (limit ${LIMIT:-1500} s); console: $OUT/console.log"; exit 125; fi
exit "$(cat "$OUT/.exit")"
