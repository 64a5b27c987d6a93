# libiscsi's suite, families Read Write Verify Inquiry ReadCapacity ReportLuns TestUnitReady, over TCP and over iSER
start_iserd --lun ram:256MiB --lun null:1GiB
# ReportLuns has no test in Debian's suite: what REPORT LUNS answers, iscsi-ls shows.
step "REPORT LUNS"
iscsi-ls -s "iscsi://$ADDR:$PORT" >"$WORK/ls" 2>&1 || fail "iscsi-ls: $(tail -1 "$WORK/ls")"
# It asks at each of the two portals.
[ "$(grep -c 'Lun:[01] ' "$WORK/ls")" = 4 ] || fail "iscsi-ls -s does not show two LUNs at two portals: $(cat "$WORK/ls")"
for url in "iscsi://$ADDR:$PORT/$IQN/0" "iser://$ADDR:$PORT/$IQN/0"; do
	step "$url"
	suite "$url" "$([ "${url%%:*}" = iscsi ] || echo "$SUITE_NOT_ISER")" || fail "$url:${SUITE_BAD:- only $SUITE_RAN tests found}"
	note "$(suite_line "$url")"
done
stop_iserd
