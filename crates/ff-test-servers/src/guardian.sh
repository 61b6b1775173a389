# Ends a server as a power cut would: when told to, and, together with its directory, when whoever started it is gone.
# $1 the directory of the server   $2 the directory it works in   $3 and more: the programs of the server
# Each line of the input is an order to kill the server, and is answered by a line.

home=$1
data=$2
shift 2

# Whoever ends a group of processes means those that work; this one goes when its input ends.
trap '' HUP INT TERM

# A process of this server is known by its program, one of the arguments, and the directory it works in: its number may be another's by now,
# and its parent may be gone.
processes() {
    for process in /proc/[0-9]*; do
        if [ "$process/cwd" -ef "$data" ] || [ "$process/cwd" -ef "$home" ]; then
            for program; do
                if [ "$process/exe" -ef "$program" ]; then echo "${process#/proc/}"; fi
            done
        fi
    done
}

# All are stopped before the first one dies: none sees another one die, and none is born meanwhile.
cut_power() {
    while found=$(processes "$@") && [ -n "$found" ]; do
        kill -STOP $found
        kill -KILL $(processes "$@")
        sleep 0.01
    done
}

# A killed server leaves a segment of shared memory, which its lock file names in line 7.
remove_memory() {
    if [ -e "$data/postmaster.pid" ]; then
        read -r _ segment <<END
$(sed -n 7p "$data/postmaster.pid")
END
        if [ -n "$segment" ]; then ipcrm -m "$segment"; fi
    fi
}

while read -r _; do
    cut_power "$@"
    echo done
done
cut_power "$@"
remove_memory
rm -rf "$home"
