#!/usr/bin/env bash
# The RDMA path without any RDMA device or kernel: LAB_VERBS names a folder with drop-in libibverbs.so.1 and librdmacm.so.1
# that connect processes of one host. iserd, as built and built with the race detector, against libiscsi's iSER client; then
# the Go tests of the RDMA packages. Without LAB_VERBS everything counts as skipped.
set -u
W=$(mktemp -d) pid= passed=0 failed=0 skipped=0 out=${LAB_OUT:-out/lab}/verbs SLOW=1
. scripts/lab.d/suite.sh
exec 9>&- # the lock is the lab's, not the daemon's
trap 'stop -9; rm -rf "$W" ${NOFREE_DIR:+"$NOFREE_DIR"}' EXIT
trap 'exit 130' INT TERM
result() { # STATUS NAME START NOTE
	local secs; secs=$(awk "BEGIN {printf \"%.1f\", ($(date +%s%3N) - $3) / 1000}")
	if [ "$1" = 0 ]; then echo "ok   $2 (${secs}s)${4:+ $4}"; passed=$((passed + 1)); else echo "FAIL $2 (${secs}s)${4:+: $4}"; failed=$((failed + 1)); fi
}
skip() { echo "skip $1: $2"; skipped=$((skipped + 1)); }
closing() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; exit; }
over() { LD_LIBRARY_PATH=$LAB_VERBS "$@"; }
stop() { # SIGNAL
	[ -n "$pid" ] || return 0
	kill "$1" "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; local code=$?; pid=
	[ "$1" = -9 ] || return $code
}

plain="verbs/discovery verbs/suite verbs/qemu-io verbs/load verbs/killed-initiator verbs/stop"
names="$plain ${plain//verbs/race} go-test go-test-race"
if [ -z "${LAB_VERBS:-}" ]; then for n in $names; do skip "$n" "LAB_VERBS is not set"; done; closing; fi
LAB_VERBS=$(readlink -f "$LAB_VERBS"); export LAB_VERBS
for f in libibverbs.so.1 librdmacm.so.1; do [ -e "$LAB_VERBS/$f" ] || { echo "FAIL verbs: LAB_VERBS=$LAB_VERBS holds no $f"; failed=1; closing; }; done
for f in iscsi-ls iscsi-inq iscsi-perf iscsi-test-cu qemu-io; do command -v $f >/dev/null || { for n in $names; do skip "$n" "$f is not installed"; done; closing; }; done
rm -rf "$out"; mkdir -p "$out"

native() { # KIND BINARY
	local kind=$1 t port code url line iqn=iqn.2026-12.lab.iserd:native log=$out/iserd-$1.log
	LD_LIBRARY_PATH=$LAB_VERBS "$2" serve --rdma verbs --listen 127.0.0.1:0 --target $iqn --lun ram:256MiB --lun null:64GiB --state-dir "$W/state" \
		>"$out/iserd-$kind.out" 2>"$log" & pid=$!
	for _ in $(seq 200); do grep -q '	ready	' "$log" && break; kill -0 $pid 2>/dev/null || break; sleep 0.1; done
	port=$(sed -n 's/^127\.0\.0\.1:\([0-9]*\) .*/\1/p' "$out/iserd-$kind.out" | head -1)
	t=$(date +%s%3N)
	if [ -z "$port" ] || ! grep -q '	ready	' "$log"; then result 1 "$kind/start" "$t" "the daemon is not ready: $(tail -1 "$log")"; stop -9; return; fi
	url=iser://127.0.0.1:$port/$iqn

	over timeout 20 iscsi-ls "iscsi://127.0.0.1:$port?iser" >"$W/ls" 2>&1; grep -q "$iqn" "$W/ls"
	result $? "$kind/discovery" "$t" "$(grep -q "$iqn" "$W/ls" || tail -1 "$W/ls")"

	t=$(date +%s%3N); iscsi_over_verbs suite "$url/0" "$SUITE_NOT_ISER" >"$out/suite-$kind.log" 2>&1
	result $? "$kind/suite" "$t" "$(suite_line "$url")${SUITE_BAD:+, failed:$SUITE_BAD}"

	t=$(date +%s%3N); line=$(iscsi_over_verbs qemu_io "$url/0"); result $? "$kind/qemu-io" "$t" "$line"

	t=$(date +%s%3N); line=
	for o in "4 KiB depth 32:-b 8 -m 32 -r" "4 KiB depth 1:-b 8 -m 1 -r" "128 KiB depth 8:-b 256 -m 8"; do
		line="$line${line:+, }${o%%:*} $(over timeout 20 iscsi-perf -t 3 ${o#*:} "$url/1" 2>&1 | tr '\r' '\n' | sed -nE 's/.*iops average ([0-9]+).*/\1/p' | tail -1) IOPS"
	done
	! grep -q '  IOPS' <<<"$line"; result $? "$kind/load" "$t" "$line"

	t=$(date +%s%3N)
	over iscsi-perf -t 30 -b 8 -m 16 -r "$url/0" >/dev/null 2>&1 & local client=$!
	sleep 1; kill -9 $client; wait $client 2>/dev/null; sleep 1
	line=$(over timeout 20 iscsi-inq "$url/0" 2>&1); code=$?
	result $code "$kind/killed-initiator" "$t" "$([ $code = 0 ] || tail -1 <<<"$line")"

	t=$(date +%s%3N); kill -0 $pid 2>/dev/null && stop -TERM; code=$?
	line=$(grep -aE -m1 '	ERROR	|^panic|^fatal error|DATA RACE' "$log")
	[ $code = 0 ] && [ -z "$line" ]; result $? "$kind/stop" "$t" "status $code${line:+, log: $line}"
}
# For functions: the variable stays set while they run.
iscsi_over_verbs() { LD_LIBRARY_PATH=$LAB_VERBS; export LD_LIBRARY_PATH; "$@"; local c=$?; unset LD_LIBRARY_PATH; return $c; }

native verbs "${ISERD:-bin/iserd}"
if go build -race -o "$W/iserd-race" ./cmd/iserd 2>"$W/build"; then
	export GORACE="halt_on_error=0 exitcode=66"; native race "$W/iserd-race"
else
	for n in ${plain//verbs/race}; do skip "$n" "no race build: $(tail -1 "$W/build")"; done
fi
t=$(date +%s%3N); go test -count=1 -timeout 300s ./rdma/verbs/ ./iser/ >"$out/go-test.log" 2>&1; result $? go-test "$t" "$(grep -m1 -E '^(---|FAIL|panic)' "$out/go-test.log")"
t=$(date +%s%3N); go test -race -count=1 -timeout 600s ./rdma/verbs/ ./iser/ >"$out/go-test-race.log" 2>&1; result $? go-test-race "$t" "$(grep -m1 -E '^(---|FAIL|panic)|DATA RACE' "$out/go-test-race.log")"
closing
