# libiscsi's conformance suite, test by test. Needs nothing else of the lab: the demo and the native run use it too.

SUITE='Read6|Read10|Read12|Read16|Write10|Write12|Write16|Verify10|Verify12|Verify16|Inquiry|ReadCapacity10|ReadCapacity16|ReportLuns|TestUnitReady'
# What Debian's libiscsi cannot do over iSER: many commands at once, and residuals.
SUITE_NOT_ISER='Async|Inquiry.AllocLength|Inquiry.BlockLimits'

# Debian's libiscsi 1.19 never clears the memory of its iSER connections, and the thread of an ended connection writes to it
# when it is somebody else's already: it crashes as the heap and the timing happen to be, with any target. So its programs
# run without free(), and with libgcc loaded, which ending a thread would load in the middle.
libiscsi() {
	if [ -z "${NOFREE:-}" ]; then
		NOFREE_DIR=$(mktemp -d); NOFREE=$NOFREE_DIR/nofree.so
		${CC:-cc} -shared -fPIC -o "$NOFREE" scripts/lab.d/nofree.c || { echo "no C compiler: libiscsi may crash" >&2; NOFREE=none; }
	fi
	if [ "$NOFREE" = none ]; then "$@"; else LD_PRELOAD="libgcc_s.so.1 $NOFREE" "$@"; fi
}

# suite URL [LEAVE-OUT-REGEX]: runs the families of SUITE. Sets SUITE_RAN, SUITE_BAD (names) and SUITE_CRASHES. A crash of
# the client decides nothing, so the test is run again; the crashes are counted.
suite() {
	local url=$1 leave=${2:-^$} t log try code
	log=$(mktemp)
	SUITE_RAN=0 SUITE_BAD= SUITE_CRASHES=0
	for t in $(iscsi-test-cu -l 2>/dev/null | grep -oE "^ALL\.($SUITE)\.[A-Za-z0-9]+" | grep -vE "$leave"); do
		SUITE_RAN=$((SUITE_RAN + 1))
		for try in 1 2 3; do
			# By lines: what was printed before a crash counts.
			libiscsi timeout $((60 * ${SLOW:-1})) stdbuf -oL iscsi-test-cu -d -t "$t" "$url" >"$log" 2>&1; code=$?
			case $code in 134 | 139) SUITE_CRASHES=$((SUITE_CRASHES + 1)) ;; esac
			if grep -q FAILED "$log"; then break; fi
			if grep -qE '^ *tests +1 +1 +1 +0 ' "$log"; then continue 2; fi
			case $code in 134 | 139) ;; *) break ;; esac
		done 2>/dev/null
		SUITE_BAD="$SUITE_BAD ${t#ALL.}"
		echo "$t: status $code"; grep -aE 'FAIL|failed|Failed|futex|fatal' "$log" | head -3
	done
	rm -f "$log"
	[ -z "$SUITE_BAD" ] && [ $SUITE_RAN -gt 60 ]
}
suite_line() { echo "$SUITE_RAN tests over ${1%%:*}$([ "$SUITE_CRASHES" = 0 ] || echo " (the client crashed $SUITE_CRASHES times and was run again)")"; }

# qemu_io URL: writes, reads back and compares patterns of several sizes, with QEMU's initiator, and checks the info.
qemu_io() {
	local url=$1 log; log=$(mktemp)
	timeout $((30 * ${SLOW:-1})) qemu-img info "$url" >"$log" 2>&1 && grep -q 'virtual size: ' "$log" || { echo "qemu-img info: $(tail -1 "$log")"; rm -f "$log"; return 1; }
	timeout $((30 * ${SLOW:-1})) qemu-io -f raw -c "write -P 0x5a 0 256k" -c "write -P 0x33 3M 64k" -c "write -P 0x77 4M 512" -c "write -z 6M 64k" \
		-c "read -P 0x5a 0 256k" -c "read -P 0x33 3M 64k" -c "read -P 0x77 4M 512" -c "read -P 0 6M 64k" -c flush "$url" >"$log" 2>&1 ||
		{ echo "qemu-io: $(tail -1 "$log")"; rm -f "$log"; return 1; }
	if grep -qiE 'verification failed|error' "$log" || [ "$(grep -cE '^(read|wrote)' "$log")" != 8 ]; then
		echo "qemu-io: $(grep -m1 -iE 'verification|error' "$log" || tail -1 "$log")"; rm -f "$log"; return 1
	fi
	# The check must be able to fail.
	if ! timeout $((30 * ${SLOW:-1})) qemu-io -f raw -c "read -P 0x5b 0 4k" "$url" 2>&1 | grep -q 'verification failed'; then
		echo "qemu-io does not compare"; rm -f "$log"; return 1
	fi
	rm -f "$log"
}
