# Runs scenarios under the kernel that was found, and counts. Sourced by scripts/lab. $out keeps one folder per scenario.
# A guest runs batch.sh, which leaves the verdict of each scenario in NAME/result; this side prints it as it comes.

names() { for f in "$L"/scenarios/*.sh; do basename "$f" .sh; done; }

run_scenarios() {
	local wanted=() n found
	passed=0 failed=0 skipped=0
	for n in "$@"; do
		n=$(basename "$n" .sh)
		found=$(names | grep -x -- "$n" || names | grep -E -- "^0*$n-" || names | grep -F -- "$n")
		if [ -z "$found" ]; then echo "FAIL $n: no such scenario (scripts/lab list)"; failed=$((failed + 1)); fi
		wanted+=($found)
	done
	[ $# -gt 0 ] || wanted=($(names))
	for n in ${wanted[@]+"${wanted[@]}"}; do rm -rf "${out:?}/$n"; mkdir -p "$out/$n"; done
	# A UML kernel boots in a second: each scenario gets a fresh one. QEMU and the host run all in one go.
	if [ "$kernel" = uml ]; then
		for n in ${wanted[@]+"${wanted[@]}"}; do kernel_words=$(kernel_words_of "$n"); batch "$n"; done
	elif [ ${#wanted[@]} -gt 0 ]; then
		batch "${wanted[@]}"
	fi
	echo "$passed passed, $failed failed, $skipped skipped"
	[ $failed = 0 ] && [ $((passed + skipped)) -gt 0 ]
}

# batch NAME...: one boot for all of them.
batch() {
	local n pid limit=${LAB_LIMIT:-$([ "$kernel" = qemu ] && echo 1500 || echo 300)}
	start_batch $((limit * $#)) "$limit" "$@" & pid=$!
	trap 'kill_tree $pid; exit 130' INT TERM
	for n in "$@"; do
		while [ ! -s "$out/$n/result" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.3; done
		report "$n"
	done
	wait "$pid"
	[ ! -f "$out/console.log" ] || mv "$out/console.log" "$out/$1/console.log"
}

kill_tree() { # PID: children first
	local c
	for c in $(ps -o pid= --ppid "$1"); do kill_tree "$c"; done
	kill "$1" 2>/dev/null
}

start_batch() { # LIMIT OF-ONE NAME...
	local all=$1 one=$2; shift 2
	local words=(SCENARIOS="${*}" LAB_ROOT="$PWD" LAB_ON="$kernel" LIMIT_ONE="$one" ISERD="$ISERD" CYCLES="${CYCLES:-}")
	in_kernel $((all + 60)) "$L/batch.sh" "${words[@]}" >"$out/$1/runner.log" 2>&1
}

# kernel_words_of NAME: what a scenario asks of the kernel's command line, by a line "# kernel: WORDS". Only a kernel of its own
# can give it; elsewhere the scenario skips, or makes do.
kernel_words=
kernel_words_of() { sed -n 's/^# kernel: //p' "$L/scenarios/$1.sh"; }

# in_kernel LIMIT SCRIPT K=V...: run a script as root with $out as /out (on the host: $out itself).
in_kernel() {
	local limit=$1 script=$PWD/$2; shift 2
	case $kernel in
	host) env "$@" OUT="$out" timeout -k 10 "$limit" bash "$script" </dev/null ;;
	# The runner mounts OUT at /out, shows this machine's root, and gives K=V words to the script as environment. It
	# splits words at blanks, so they travel in a file.
	uml) printf '%q\n' "$@" >"$out/.words"; OUT=$out LIMIT=$limit "$LAB_UML" "$script" $kernel_words ;;
	qemu) printf '%q\n' "$@" >"$out/.words"; OUT=$out LIMIT=$limit bash "$L/qemu.sh" run "$script" ;;
	esac
}

report() { # NAME
	local dir=$out/$1 verdict secs why
	if [ -s "$dir/result" ]; then read -r verdict secs why <"$dir/result"; else verdict=LOST; fi
	case $verdict in
	LAB-OK) printf 'ok   %s (%ss)%s\n' "$1" "$secs" "${why:+ $why}"; passed=$((passed + 1)) ;;
	LAB-SKIP) printf 'skip %s: %s\n' "$1" "$why"; skipped=$((skipped + 1)) ;;
	LAB-FAIL) printf 'FAIL %s (%ss): %s\n     logs: %s\n' "$1" "$secs" "$why" "$dir"; failed=$((failed + 1)) ;;
	*)
		printf 'FAIL %s: the kernel ended before it\n     logs: %s\n' "$1" "$dir"
		tail -qn 5 "$dir/run.log" "$dir/runner.log" "$out/console.log" 2>/dev/null | sed 's/^/     | /'
		failed=$((failed + 1)) ;;
	esac
}

# run_commands COMMANDS: in the lab, output shown, status kept.
run_commands() {
	printf '%s\n' "$1" >"$out/.commands"
	in_kernel "${LAB_LIMIT:-600}" "$L/shell.sh" LAB_ROOT="$PWD" LAB_ON="$kernel" ISERD="$ISERD"
}

run_shell() {
	: >"$out/.commands"
	if [ "$kernel" = host ]; then OUT=$out LAB_ROOT=$PWD LAB_ON=host bash "$L/shell.sh"; return; fi
	printf '%q\n' LAB_ROOT="$PWD" LAB_ON="$kernel" ISERD="$ISERD" >"$out/.words"
	OUT=$out LIMIT=86400 bash "$L/qemu.sh" shell "$PWD/$L/shell.sh"
}
