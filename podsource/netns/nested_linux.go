// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var errOwnProcess1 = errors.New("process 1 is a container's, and nothing shows that this container is a node: " +
	"no process is in a child PID namespace, as of a container, and no ancestor of this process has other mounts. " +
	"The agent's pod needs hostPID, or Proc must be the path of the node's procfs. An agent directly on a nested node " +
	"without containers needs a PID namespace of its own and the node's /proc, as by unshare --pid --fork")

// checkNested checks that process 1, which is not the machine's, is a nested node's,
// and not the agent's own pod's. Both look alike to the kernel, but a node runs
// containers. One of these shows it:
//
//   - a process in a child PID namespace is in another container than process 1. It
//     may be the agent itself, if it has the node's procfs and no hostPID.
//   - an ancestor of the agent with other mounts has started the agent's container
//     (with hostPID). It must not be process 1: in a pod with a shared PID namespace
//     process 1 has mounts of its own, and adopts processes whose parent has ended.
func (s *Source) checkNested(pidNS uint64) error {
	pids, err := numericEntries(s.opts.Proc)
	if err != nil {
		return fmt.Errorf("listing the node's processes: %w", err)
	}
	for _, pid := range pids {
		dir := s.opts.Proc + "/" + pid
		inode, err := nsInode(dir + "/ns/pid")
		if err == nil && inode != pidNS {
			return nil
		}
		if err := ignoreExited(dir, err); err != nil {
			return fmt.Errorf("reading process %s: %w", pid, hint(err))
		}
	}
	pid, err := os.Readlink(filepath.Join(s.opts.Proc, "self"))
	if err != nil {
		return fmt.Errorf("finding this process in procfs: %w", err)
	}
	mounts, err := nsInode(s.opts.Proc + "/" + pid + "/ns/mnt")
	for ; err == nil && pid != "0" && pid != "1"; pid, err = parentOf(s.opts.Proc + "/" + pid) {
		var inode uint64
		if inode, err = nsInode(s.opts.Proc + "/" + pid + "/ns/mnt"); err == nil && inode != mounts {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("reading the ancestors of this process: %w", hint(err))
	}
	return errOwnProcess1
}

// parentOf returns the PID of a process's parent, or "0" if the parent is outside the
// PID namespace.
func parentOf(dir string) (string, error) {
	_, fields, err := readStat(dir)
	if err != nil {
		return "", err
	}
	return fields[1], nil
}

// readStat returns the command name of a process or thread, and the fields after it:
// state, parent and so on (proc(5), /proc/<pid>/stat).
func readStat(dir string) (comm string, fields []string, err error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return "", nil, err
	}
	// The second field is in parentheses and may contain any character.
	if end := strings.LastIndex(string(text), ") "); end >= 0 {
		_, comm, _ = strings.Cut(string(text[:end]), "(")
		fields = strings.Fields(string(text[end+1:]))
	}
	if len(fields) < 20 {
		return "", nil, fmt.Errorf("%s/stat: %q is not the status of a process", dir, text)
	}
	return comm, fields, nil
}
