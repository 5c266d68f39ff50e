#!/bin/busybox sh
# The first process of a guest: makes a root like that of a distribution, control groups like those of systemd, and tries one
# scenario after the other. It is started twice: by the kernel, and once the root is one that can be left behind for a
# private one (the first cannot, pivot_root(2)).
export PATH=/bin
GROUPS_ROOT=/sys/fs/cgroup

if [ ! -e /second ]; then
    /bin/busybox --install -s /bin
    for module in /modules/*.ko; do insmod "$module"; done
    mount -t tmpfs -o mode=755 root /root
    cp -a /bin /scenarios /init /root
    : > /root/second
    cd /root && mkdir dev etc home proc sys tmp
    exec switch_root /root /init
fi

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 pts /dev/pts
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t cgroup2 -o nsdelegate none $GROUPS_ROOT
truncate -s 64M /tmp/disk
mke2fs -F /tmp/disk > /dev/null
mount -t ext4 -o loop /tmp/disk /home
printf '%s\n' root:x:0:0::/home/root:/bin/sh user:x:1000:1000::/home/user:/bin/sh > /etc/passwd
printf '%s\n' root:x:0: user:x:1000: > /etc/group
for user in root user; do
    mkdir -p /home/$user/work && cp /bin/probe /home/$user/work
    chown -R $user:$user /home/$user
done
ifconfig lo up

# make GROUP CONTROLLERS…: a group whose children have these controllers.
make() {
    group=$GROUPS_ROOT/$1; shift
    mkdir -p "$group"
    for controller; do echo "+$controller" > "$group/cgroup.subtree_control"; done
}
# delegate GROUP: what systemd gives to the user of a unit with `Delegate=`.
delegate() {
    for file in . cgroup.procs cgroup.subtree_control cgroup.threads; do chown user "$GROUPS_ROOT/$1/$file"; done
}
make . cpu memory pids
make user.slice cpu memory pids
make user.slice/user-0.slice memory pids
make user.slice/user-0.slice/session-1.scope
make user.slice/user-1000.slice cpu memory pids
make user.slice/user-1000.slice/session-2.scope
own=user.slice/user-1000.slice/user@1000.service
make $own cpu memory pids
make $own/app.slice cpu memory pids
make $own/app.slice/run-1.scope
for group in $own $own/app.slice $own/app.slice/run-1.scope; do delegate $group; done
make system.slice cpu memory pids
make system.slice/within.service && delegate system.slice/within.service
make system.slice/old.slice memory pids
make system.slice/half.service cpu memory pids && chown user $GROUPS_ROOT/system.slice/half.service
make system.slice/half.service/main
for unit in sub.service old.slice/user.service; do
    make system.slice/$unit && make system.slice/$unit/main
    delegate system.slice/$unit && delegate system.slice/$unit/main
done

# What every scenario can say.
cat > /etc/profile.guest <<'END'
groups() { find /sys/fs/cgroup -name 'lockgate-*'; }
# hold FLAGS…: a run that holds, its command line in $run, once the command is started.
hold() {
    rm -f held
    lockgate run "$@" -- sh -c ': > held; sleep 60' 2>/dev/null & run=$!
    for attempt in $(seq 100); do [ -e held ] && return; sleep 0.05; done
    echo "the run did not start" >&2; exit 98
}
# unit MEMORY: an empty group beside the own one, as a unit of systemd's with `MemoryMax=`, its path in $unit.
unit() {
    unit=$(dirname /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup))/unit
    mkdir $unit && echo $1 > $unit/memory.max
}
# dismantle: removes that group, once the last process in it has ended.
dismantle() { for attempt in $(seq 100); do rmdir $unit 2>/dev/null && return; sleep 0.02; done; rmdir $unit; }
END

while read -r number user group; do
    (
        echo 0 > "$GROUPS_ROOT/$group/cgroup.procs"
        cd "/home/$user/work" || exit 99
        exec timeout 60 su -s /bin/sh "$user" -c ". /etc/profile.guest; . /scenarios/$number"
    ) < /dev/null > /tmp/out 2> /tmp/err
    code=$?
    echo "RESULT $number $code out:$(base64 < /tmp/out | tr -d '\n') err:$(base64 < /tmp/err | tr -d '\n')"
done < /scenarios/list
poweroff -f
