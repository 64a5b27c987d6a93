# Finds a kernel with rxe and ib_iser, and runs a scenario under it. Sourced by scripts/lab.

host_kernel() {
	[ "$(id -u)" = 0 ] || return 1
	for m in rdma_rxe ib_iser; do
		grep -qs "^$m " /proc/modules || modprobe -nq "$m" 2>/dev/null || return 1
	done
}

find_kernel() {
	local k=${LAB_KERNEL:-}
	if [ "$k" = host ] || [ -z "$k" ] && host_kernel; then
		host_kernel || { echo "lab: this host lacks root, rdma_rxe or ib_iser" >&2; return 1; }
		echo "host $(uname -r)"; return
	fi
	if [ "$k" = uml ] || [ -z "$k" ] && [ -n "${LAB_UML:-}" ]; then
		[ -x "${LAB_UML:-}" ] || { echo "lab: LAB_UML does not name a runner: '${LAB_UML:-}'" >&2; return 1; }
		echo "uml $LAB_UML"; return
	fi
	if [ -z "$k" ] || [ "$k" = qemu ]; then
		if command -v qemu-system-x86_64 >/dev/null || scripts/bootstrap qemu >&2 && command -v qemu-system-x86_64 >/dev/null; then
			echo "qemu"; return
		fi
		echo "lab: no kernel with soft-RoCE: need root and the rdma_rxe and ib_iser modules, or LAB_UML, or qemu-system-x86" >&2
		return 1
	fi
	echo "lab: LAB_KERNEL=$k: want host, uml or qemu" >&2
	return 1
}

run_in_host() { OUT=$OUT SCENARIO=$1 LAB_ROOT=$PWD LAB_ON=host bash "$PWD/scripts/lab.d/guest.sh"; }

run_in_uml() {
	# The runner mounts OUT at /out, shows this machine's root, and gives K=V words to the script as environment.
	OUT=$OUT LIMIT=$LIMIT "$LAB_UML" "$PWD/scripts/lab.d/guest.sh" SCENARIO="$1" LAB_ROOT="$PWD" LAB_ON=uml
}

run_in_qemu() { OUT=$OUT LIMIT=$LIMIT bash "$PWD/scripts/lab.d/qemu.sh" "$PWD/scripts/lab.d/guest.sh" SCENARIO="$1" LAB_ROOT="$PWD" LAB_ON=qemu; }
