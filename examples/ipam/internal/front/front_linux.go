// SPDX-License-Identifier: Apache-2.0

// Package front executes the real host-local before the rest of the program is initialized, and
// ends the process if that succeeds. Most ADDs do, and nothing else is loaded for them.
//
// Packages are initialized in the order of their import paths, each once those that it imports are
// (Go specification, "Program initialization"). This package imports so little that it comes before
// encoding/json, net and regexp, and before all that imports these.
package front

import (
	"errors"
	"slices"
	"syscall"
	"unsafe"
)

const (
	// plainName is the file name of the real host-local. realName is its name if this plugin is
	// installed under plainName.
	plainName = "host-local"
	realName  = "host-local.real"

	// mark is set in host-local's environment to the paths of this program, so that a copy of it that
	// is executed in the place of host-local knows, and looks further.
	mark = "HOSTLOCAL_GC_IPAM_DELEGATE"
)

// An ADD is the runtime's request, and the last try of host-local.
type ADD struct {
	Stdin  []byte   // the network configuration
	Parent int      // the process that called this one
	Began  int64    // when the last try began, in nanoseconds since the boot
	Out    []byte   // what host-local printed in it
	Code   int      // host-local's exit code in it
	path   string   // of host-local
	env    []string // host-local's
}

// Failed is the ADD of this process, if a runtime started it and the first try did not succeed. Err
// is why a command could not be executed at all.
var (
	Failed *ADD
	Err    error
)

// Of any other command than ADD the process becomes host-local. A process without a command, such as
// a test, goes on.
func init() { //nolint:gochecknoinits // see the comment of the package
	if command, ok := syscall.Getenv("CNI_COMMAND"); ok && command != "" {
		Failed, Err = run(command)
	}
}

// Become replaces this process by host-local. It returns only an error.
func Become() error {
	_, err := run("")
	return err
}

func run(command string) (*ADD, error) {
	a := &ADD{Parent: syscall.Getppid()}
	copied, err := a.find()
	if err != nil {
		return nil, err
	}
	if command != "ADD" || copied {
		return nil, a.failed(syscall.Exec(a.path, a.args(), a.env))
	}
	if a.Stdin, err = readAll(0); err != nil {
		return nil, a.failed(syscall.Exec(a.path, a.args(), a.env)) // host-local says it
	}
	if err := a.Try(); err != nil {
		return nil, err
	}
	if a.Code == 0 && writeAll(1, a.Out) == nil {
		syscall.Exit(0)
	}
	return a, nil
}

// find finds host-local: the first program of that name that is not this one, in the directories of
// CNI_PATH and then in that under which this program was called and in its own, which differ if it is
// a link, or else the first program called host-local.real there. For VERSION runtimes set a
// CNI_PATH without plugins. It reports whether this process was itself executed in the place of host-local.
func (a *ADD) find() (copied bool, err error) {
	var text [4096]byte
	n, err := syscall.Readlink("/proc/self/exe", text[:])
	if err != nil {
		return false, errors.New("finding this program: " + err.Error())
	}
	self := string(text[:n]) // with " (deleted)" if an upgrade has replaced it; then that finds the mark
	cniPath, _ := syscall.Getenv("CNI_PATH")
	marked, copied := syscall.Getenv(mark)
	seen := []syscall.Stat_t{stat(self)}
	for _, path := range split(marked) {
		if seen = append(seen, stat(path)); same(seen[0], seen[len(seen)-1]) {
			return false, errors.New("hostlocal-gc-ipam was executed as its own delegate: install the real host-local beside it as " + realName)
		}
	}
	a.env = slices.DeleteFunc(syscall.Environ(), func(v string) bool { return len(v) > len(mark) && v[:len(mark)+1] == mark+"=" })
	a.env = append(a.env, mark+"="+self+":"+marked)
	dirs := append(split(cniPath), dirOf(calledAs(self)), dirOf(self))
	for _, name := range []string{plainName, realName} {
		for _, dir := range dirs {
			a.path = dir + "/" + name
			if dir == "" {
				a.path = "./" + name // never searched in PATH
			}
			info := stat(a.path)
			known := slices.ContainsFunc(seen, func(s syscall.Stat_t) bool { return same(s, info) })
			if !known && info.Mode&syscall.S_IFMT == syscall.S_IFREG && info.Mode&0o111 != 0 {
				return copied, nil
			}
		}
	}
	return false, errors.New("hostlocal-gc-ipam found no host-local that can be executed, except for itself, in " + cniPath + ":" +
		dirs[len(dirs)-1] + ": install the real one there, as " + plainName + " or as " + realName)
}

// calledAs returns the path under which this program was called (proc(5), /proc/<pid>/cmdline), or
// self if that has no slash.
func calledAs(self string) string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return self
	}
	text, _ := readAll(fd) // what was read counts
	_ = syscall.Close(fd)  // only read
	name := text[:max(0, slices.Index(text, 0))]
	if !slices.Contains(name, '/') {
		return self
	}
	return string(name)
}

// stat returns the status of a file. Its inode is zero if there is none.
func stat(path string) (info syscall.Stat_t) {
	_ = syscall.Stat(path, &info) // after an error it is zero
	return info
}

func same(s, t syscall.Stat_t) bool { return s.Dev == t.Dev && s.Ino == t.Ino && s.Ino != 0 }

// args returns host-local's argv. In k3s host-local is a link to a program that contains all
// plugins, and runs the one of that name.
func (a *ADD) args() []string { return []string{dirOf(a.path) + "/" + plainName} }

func (a *ADD) failed(err error) error { return errors.New("executing " + a.path + ": " + err.Error()) }

// Try executes host-local, and waits for its end. It returns an error if host-local did not run, or
// was killed. Host-local is killed when this process ends, as one that the runtime had started would
// be: a later reservation would be a leak. The kernel kills it when the thread that started it ends,
// so the caller must be locked to the main thread.
func (a *ADD) Try() error {
	var in, out [2]int
	if err := errors.Join(syscall.Pipe2(in[:], syscall.O_CLOEXEC), syscall.Pipe2(out[:], syscall.O_CLOEXEC)); err != nil {
		return a.failed(err)
	}
	a.Began = SinceBoot()
	pid, err := syscall.ForkExec(a.path, a.args(), &syscall.ProcAttr{
		Env: a.env, Files: []uintptr{uintptr(in[0]), uintptr(out[1]), 2}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	_, _ = syscall.Close(in[0]), syscall.Close(out[1])
	defer func() { _ = syscall.Close(out[0]) }() // only read
	write := func() {                            // a program that does not read it says so itself
		_ = writeAll(in[1], a.Stdin)
		_ = syscall.Close(in[1])
	}
	switch {
	case err != nil:
		_ = syscall.Close(in[1])
		return a.failed(err)
	case len(a.Stdin) <= syscall.Getpagesize(): // the least that a pipe has room for (pipe(7))
		write()
	default:
		go write()
	}
	var status syscall.WaitStatus
	a.Out, err = readAll(out[0])
	for {
		if _, waitErr := syscall.Wait4(pid, &status, 0, nil); !errors.Is(waitErr, syscall.EINTR) {
			break
		}
	}
	if a.Code = status.ExitStatus(); !status.Exited() {
		return a.failed(errors.New("signal: " + status.Signal().String()))
	}
	return err
}

// SinceBoot returns the nanoseconds since the boot, with sleep. All processes of a boot share this
// clock (CLOCK_BOOTTIME), and it is never set.
func SinceBoot() int64 {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0 // before Linux 2.6.39
	}
	return ts.Nano()
}

func readAll(fd int) (all []byte, err error) {
	all = make([]byte, 0, 8<<10)
	for {
		n, err := syscall.Read(fd, all[len(all):cap(all)])
		if n > 0 {
			all = all[:len(all)+n]
		}
		if errors.Is(err, syscall.EAGAIN) { // it does not block, as only stdin may
			var set syscall.FdSet
			set.Bits[0] = 1 << fd
			_, _ = syscall.Select(fd+1, &set, nil, nil, nil) // after an error it is read again
			continue
		}
		if n == 0 || err != nil && !errors.Is(err, syscall.EINTR) {
			return all, err
		}
		all = slices.Grow(all, 1)
	}
}

func writeAll(fd int, text []byte) error {
	for len(text) > 0 {
		n, err := syscall.Write(fd, text)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		text = text[max(n, 0):]
	}
	return nil
}

// split returns the elements of a list of paths. An empty list has none.
func split(list string) (all []string) {
	begin := 0
	for i := range len(list) + 1 {
		if list != "" && (i == len(list) || list[i] == ':') {
			all, begin = append(all, list[begin:i]), i+1
		}
	}
	return all
}

// dirOf returns the directory of a path with a slash.
func dirOf(path string) string {
	end := len(path) - 1
	for path[end] != '/' {
		end--
	}
	return path[:end]
}
