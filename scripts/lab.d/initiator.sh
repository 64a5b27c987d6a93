# The kernel's initiator, by open-iscsi. Sourced by lib.sh. TRANSPORT is iser or tcp.

start_iscsid() {
	if [ "$LAB_ON" = host ]; then
		# The host's own, which keeps its records and sessions.
		pgrep -x iscsid >/dev/null && return
		systemctl -q is-active iscsid.socket 2>/dev/null && return
	else
		# A folder of its own: no record from before, and readable also where QEMU runs without root.
		local conf; conf=$(cat /etc/iscsi/iscsid.conf 2>/dev/null)
		mkdir -p /etc/iscsi
		grep -q ' /etc/iscsi ' /proc/mounts || mount -t tmpfs lab /etc/iscsi
		echo "${conf:-node.startup = manual}" >/etc/iscsi/iscsid.conf
		echo "InitiatorName=iqn.2026-12.lab.iserd:initiator" >/etc/iscsi/initiatorname.iscsi
	fi
	# In a session of its own: at its end it signals its whole process group.
	setsid iscsid -f >"$OUT/iscsid.log" 2>&1 & OWN_ISCSID=$!
	local i
	for i in $(seq 100); do grep -qs ISCSIADM_ABSTRACT_NAMESPACE /proc/net/unix && return; sleep 0.1; done
	fail "iscsid does not start: $(tail -1 "$OUT/iscsid.log")"
}

hostport() { case $1 in *:*) echo "[$1]:$2" ;; *) echo "$1:$2" ;; esac; }
iface_of() { if [ "$1" = iser ]; then echo lab-iser; else echo default; fi; }

# discover TRANSPORT [ADDR] [PORT]: prints what SendTargets says. Leaves no record behind.
discover() {
	iscsiadm -m discovery -t st -p "$(hostport "${2:-$ADDR}" "${3:-$PORT}")" -I "$(iface_of "$1")" -o nonpersistent 2>&1
}
# login TRANSPORT IQN [ADDR] [SESSIONS]
login() {
	local iface portal
	iface=$(iface_of "$1"); portal=$(hostport "${3:-$ADDR}" $PORT)
	iscsiadm -m node -o new -T "$2" -p "$portal,1" -I "$iface" >/dev/null || fail "cannot make a node record for $2"
	[ -z "${4:-}" ] || iscsiadm -m node -T "$2" -p "$portal" -I "$iface" --op update -n node.session.nr_sessions -v "$4"
	iscsiadm -m node -T "$2" -p "$portal" -I "$iface" --login >"$OUT/login.log" 2>&1 || fail "$1 login to $2: $(tail -1 "$OUT/login.log")"
}
login_iser() { login iser "$@"; }
login_tcp() { login tcp "$@"; }
# logout TRANSPORT IQN [ADDR]
logout() {
	iscsiadm -m node -T "$2" -p "$(hostport "${3:-$ADDR}" $PORT)" -I "$(iface_of "$1")" --logout >"$OUT/logout.log" 2>&1 ||
		fail "logout: $(tail -1 "$OUT/logout.log")"
}
# disks IQN [TRANSPORT]: "LUN DEVICE" lines of the sessions with a target.
disks() {
	iscsiadm -m session -P 3 2>/dev/null | awk -v t="$1" -v tr="${2:-}" '
		/^Target:/ {on = ($2 == t)} /Iface Transport:/ {ok = (tr == "" || $3 == tr)}
		/Lun:/ {lun = $NF} /Attached scsi disk/ {if (on && ok) print lun, "/dev/" $4}'
}
# disk_of IQN LUN [TRANSPORT]: waits for the block device and sets DISK.
disk_of() {
	local end=$(($(date +%s) + 15 * SLOW))
	while :; do
		DISK=$(disks "$1" "${3:-}" | awk -v l="$2" '$1 == l {print $2; exit}')
		[ -n "$DISK" ] && [ -b "$DISK" ] && [ "$(blockdev --getsize64 "$DISK" 2>/dev/null || echo 0)" -gt 0 ] && return
		[ "$(date +%s)" -lt $end ] || fail "no disk for $1 LUN $2"
		sleep 0.2
	done
}
# fio_verify DISK [OPTIONS...]: sizes from 4 KiB to 1 MiB, depth 32, every block checked by CRC. Succeeds only if fio wrote,
# read, verified and counted no error. Its report: fio_log DISK.
fio_log() { echo "$OUT/fio-$(basename "$1").log"; }
fio_verify() {
	local d=$1 log; log=$(fio_log "$1"); shift
	fio --name=verify --filename="$d" --ioengine=libaio --direct=1 --rw=randrw --bsrange=4k-1m --bs_unaligned=0 --blockalign=4k \
		--iodepth=32 --eta=never --verify=crc32c --verify_fatal=1 --verify_backlog=64 --size=64m --randseed=7 --output="$log" "$@" || return 1
	grep -q 'err= 0' "$log" && grep -qE '^ *read: IOPS' "$log" && grep -qE '^ *write: IOPS' "$log"
}
fio_why() { grep -m1 -aE 'err=[^0]*[1-9]|verify: [^(]|io_u error' "$(fio_log "$1")" 2>/dev/null || echo "fio left no report"; }
fio_rates() { sed -nE 's/^ *(read|write): IOPS=([^,]*), BW=([^ ]*).*/\1 \2 IOPS \3/p' "$(fio_log "$1")" | head -2 | paste -sd, | sed 's/,/, /g'; }
