# libiscsi's suite, families Read Write Verify Inquiry ReadCapacity ReportLuns TestUnitReady, over TCP and over iSER
start_iserd --lun ram:256MiB
suite() { # URL, tests to leave out
	local url=$1 leave=$2 n=0 bad= t
	for t in $(iscsi-test-cu -l 2>/dev/null | grep -oE '^ALL\.(Read6|Read10|Read12|Read16|Write10|Write12|Write16|Verify10|Verify16|Inquiry|ReadCapacity10|ReadCapacity16|ReportLuns|TestUnitReady)\.[A-Za-z0-9]+' | grep -vE "$leave"); do
		n=$((n + 1))
		timeout $((60 * SLOW)) iscsi-test-cu -d -t "$t" "$url" >/tmp/cu 2>&1 && ! grep -q FAILED /tmp/cu || { bad="$bad $t"; echo "$t"; grep -E 'FAIL|failed' /tmp/cu | head -3; }
	done
	[ $n -gt 20 ] || fail "only $n tests found"
	[ -z "$bad" ] || fail "$url:$bad"
	note "$n tests over ${url%%:*}"
}
step TCP; suite "iscsi://$ADDR:$PORT/$IQN/0" '^$'
# What Debian's libiscsi cannot do over iSER: many commands at once, and residuals.
step iSER; suite "iser://$ADDR:$PORT/$IQN/0" 'Async|Inquiry.AllocLength|Inquiry.BlockLimits'
