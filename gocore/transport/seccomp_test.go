package transport

import (
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestMain also plays the process in which a seccomp filter refuses epoll_pwait2.
func TestMain(m *testing.M) {
	if os.Getenv("FPTPS_TEST_SECCOMP") != "" {
		os.Exit(pollWithoutPwait2())
	}
	os.Exit(m.Run())
}

// TestPollerWhereSeccompRefuses: the filters of older container runtimes answer a call that they do not know with EPERM.
func TestPollerWhereSeccompRefuses(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "FPTPS_TEST_SECCOMP=1")
	out, err := c.CombinedOutput()
	if c.ProcessState != nil && c.ProcessState.ExitCode() == noSeccomp {
		t.Skipf("no filter can be set here: %s", out)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

const noSeccomp = 77 // exit code

// pollWithoutPwait2 waits for a short and a long time, and for an event, under such a filter.
func pollWithoutPwait2() int {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_EPOLL_PWAIT2, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: seccompErrno | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: seccompAllow},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		println("no_new_privs:", err.Error())
		return noSeccomp
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompSetModeFilter, seccompAllThreads, uintptr(unsafe.Pointer(&program))); errno != 0 {
		println("seccomp:", errno.Error())
		return noSeccomp
	}
	p, err := newPoller()
	if err != nil {
		println(err.Error())
		return 1
	}
	defer p.close()
	for _, wait := range []time.Duration{0, napTime, 2 * napTime} {
		if events, err := p.wait(wait); err != nil || len(events) > 0 {
			println("wait:", len(events), err.Error())
			return 1
		}
	}
	p.wake.wake()
	if events, err := p.wait(forever); err != nil || len(events) != 1 {
		println("wait for an event:", len(events), err)
		return 1
	}
	return 0
}

// Of linux/seccomp.h.
const (
	seccompSetModeFilter = 1
	seccompAllThreads    = 1 // SECCOMP_FILTER_FLAG_TSYNC
	seccompErrno         = 0x00050000
	seccompAllow         = 0x7fff0000
)
