# The daemon under test. Sourced by lib.sh.
ISERBENCH=${ISERBENCH:-$(dirname "$ISERD")/iserbench}

# start_iserd ARGS...: the daemon, waited for until it is ready. Without --listen or --config: both families, one port.
# ISERD_IN is put before the command, ISERD_RDMA is the kind of RDMA.
start_iserd() {
	local listen=(--listen $ADDR:$PORT --listen "[$ADDR6]:$PORT") a n end
	for a in "$@"; do case $a in --listen | --config) listen=() ;; esac; done
	[[ " $* " == *" --target "* || " $* " == *" --config "* ]] || set -- --target $IQN "$@"
	touch "$OUT/iserd.log"
	n=$(grep -c '	ready	' "$OUT/iserd.log")
	${ISERD_IN:-} "$ISERD" serve --rdma "${ISERD_RDMA:-verbs}" --state-dir "$WORK/state" ${listen[@]+"${listen[@]}"} "$@" >>"$OUT/iserd.out" 2>>"$OUT/iserd.log" &
	ISERD_PID=$!
	end=$(($(date +%s) + 20 * SLOW))
	until [ "$(grep -c '	ready	' "$OUT/iserd.log")" -gt "$n" ]; do
		kill -0 $ISERD_PID 2>/dev/null || { ISERD_PID=; fail "the daemon did not start: $(tail -1 "$OUT/iserd.log")"; }
		[ "$(date +%s)" -lt $end ] || fail "the daemon is not ready after $((20 * SLOW)) s"
		sleep 0.1
	done
}

stop_iserd() {
	local code
	kill -TERM "$ISERD_PID"; wait "$ISERD_PID"; code=$?; ISERD_PID=
	[ $code = 0 ] || fail "the daemon ended with status $code"
}

# check_log: no error, no panic, no data race. LOG_OK: what a scenario provokes.
check_log() {
	local bad
	bad=$(grep -aE '	ERROR	|^panic|^fatal error|DATA RACE' "$OUT/iserd.log" 2>/dev/null | grep -avE "${LOG_OK:-^$}" | head -2)
	[ -z "$bad" ] || fail "the daemon's log: $bad"
}

# stats: one line of the daemon's counters.
stats() {
	local n end
	n=$(grep -c '	stats	' "$OUT/iserd.log"); kill -USR1 "$ISERD_PID"
	end=$(($(date +%s) + 5 * SLOW))
	until [ "$(grep -c '	stats	' "$OUT/iserd.log")" -gt "$n" ]; do
		[ "$(date +%s)" -lt $end ] || { echo "no counters after SIGUSR1" >&2; return 1; }
		sleep 0.1
	done
	grep '	stats	' "$OUT/iserd.log" | tail -1
}
# stat_of NAME [LINE]: one counter.
stat_of() { { [ $# -gt 1 ] && echo "$2" || stats; } | grep -oE "\"$1\": ?[0-9]+" | grep -oE '[0-9]+$' | head -1; }
# rdma_count qp|cq|mr|pd|cm_id: how many of them the kernel counts as the daemon's. It knows them by thread, so by name.
rdma_count() { rdma resource show "$1" 2>/dev/null | grep -c "comm $(cat /proc/$ISERD_PID/comm) "; }
