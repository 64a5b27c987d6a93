# random bytes, a port scan, a TLS hello, half a login, a stranger's RDMA: one quiet log line each, other sessions unharmed
start_iserd --lun ram:96MiB
login iser $IQN; disk_of $IQN 0
fio_verify "$DISK" --time_based --runtime=$((SLOW > 1 ? 60 : 20)) & p=$!
sleep 1
lines() { wc -l <"$OUT/iserd.log"; }
send() { timeout $((20 * SLOW)) bash -c "exec 3<>/dev/tcp/$ADDR/$PORT; cat >&3; cat <&3 >/dev/null" 2>/dev/null; }
# one WHAT COMMAND...: it must cause one log line, below WARN, soon.
one() {
	local what=$1 n new end; shift
	step "$what"
	n=$(lines); "$@"
	end=$(($(date +%s) + 20 * SLOW))
	until [ "$(lines)" -gt "$n" ]; do [ "$(date +%s)" -lt $end ] || fail "$what: no log line"; sleep 0.2; done
	sleep 1
	new=$(tail -n +$((n + 1)) "$OUT/iserd.log")
	[ "$(echo "$new" | wc -l)" = 1 ] || fail "$what: $(echo "$new" | wc -l) log lines: $new"
	echo "$new" | grep -qE "${QUIET:-	INFO	}" || fail "$what: not a quiet line: $new"
	echo "$new" | cut -c1-200
}
random() { head -c 48 /dev/urandom | send; }
tls() { printf '\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03%0160d' 0 | send; }
http() { printf 'GET / HTTP/1.1\r\nHost: x\r\n\r\n%060d' 0 | send; }
knock() { timeout 2 bash -c "exec 3<>/dev/tcp/$ADDR/$PORT" 2>/dev/null; }
half_bhs() { printf '\x43\x87\x00\x00\x00\x00\x00\x40%04d' 0 | timeout 3 bash -c "exec 3<>/dev/tcp/$ADDR/$PORT; cat >&3" 2>/dev/null; }
# A first Login Request of the security stage with TEXT, NULs for its '|', padded to four bytes.
login_request() {
	local text=$1 n
	n=$((${#text}))
	while [ $((${#text} % 4)) != 0 ]; do text="$text|"; done
	printf '\x43\x81\x00\x00\x00\x00\x00'; printf "\\x$(printf %02x $n)"
	printf '\x80\x12\x34\x56\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01'
	printf '\x00%.0s' $(seq 20)
	printf %s "$text" | tr '|' '\0'
}
open_and_close() { timeout 5 bash -c "exec 3<>/dev/tcp/$ADDR/$PORT; cat >&3; sleep 1" 2>/dev/null; }
# Goes away in the middle, after the target has answered the first step.
half_login() { login_request "InitiatorName=iqn.2026-12.lab.iserd:half|TargetName=$IQN|AuthMethod=None|" | open_and_close; }
nameless() { login_request "InitiatorName=iqn.2026-12.lab.iserd:half|AuthMethod=None|" | send; }
for i in 1 2 3; do one "48 random bytes" random; done
one "connect and close" knock
one "a TLS hello" tls
one "an HTTP request" http
one "half a header" half_bhs
QUIET='login refused.*given up' one "half a login" half_login
step "a login without a TargetName"
n=$(lines); nameless; sleep 1
[ $(($(lines) - n)) = 1 ] || fail "a nameless login: $(($(lines) - n)) log lines"
tail -1 "$OUT/iserd.log" | grep -q 'login refused.*TargetName' || fail "a nameless login: $(tail -1 "$OUT/iserd.log")"
if command -v rping >/dev/null; then
	step "an RDMA client that is no initiator"
	n=$(lines)
	timeout $((10 * SLOW)) rping -c -a $ADDR -p $PORT -C 1 >/dev/null 2>&1
	sleep 1
	[ $(($(lines) - n)) -le 2 ] || fail "rping: $(($(lines) - n)) log lines"
	tail -n +$((n + 1)) "$OUT/iserd.log" | grep -qE '	ERROR	' && fail "rping: $(tail -1 "$OUT/iserd.log")"
fi
step "a port scan, 60 connections"
n=$(lines)
for i in $(seq 60); do knock; done
sleep 1
new=$(($(lines) - n))
[ $new -le 40 ] || fail "$new log lines for 60 connections"
step "fio to its end"
wait $p || fail "fio saw an error: $(fio_why "$DISK")"
grep -q 'session lost' "$OUT/iserd.log" && fail "another session was harmed: $(grep -m1 'session lost' "$OUT/iserd.log")"
note "$new log lines for a scan of 60 connections"
logout iser $IQN
stop_iserd
