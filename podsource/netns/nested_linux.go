// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var errOwnProcess1 = errors.New("process 1 is that of a container, and nothing shows that the container is a node: " +
	"no process is seen in a PID namespace below, as containers have one, and none that has started this one in a container. " +
	"The agent's pod needs hostPID, or Proc is where the node's procfs is mounted. An agent directly on a nested node " +
	"that runs no container needs a PID namespace of its own beside the node's /proc, as by unshare --pid --fork")

// checkNested makes sure that process 1, which is not the machine's, is a nested
// node's, and not just that of the agent's own pod. The kernel shows both alike,
// but a node runs containers, and this is where one shows:
//
//   - a process in a PID namespace below is in another container than process 1.
//     That is also the agent, where it has the procfs of the node and not hostPID.
//   - an ancestor of the agent with other mounts has started the agent's container
//     (with hostPID). It must not be process 1: a pod may share its processes, and
//     process 1, which has mounts of its own there, inherits those whose parent
//     has ended.
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
			return fmt.Errorf("looking at process %s: %w", pid, hint(err))
		}
	}
	pid, err := os.Readlink(filepath.Join(s.opts.Proc, "self"))
	if err != nil {
		return fmt.Errorf("looking for this process: %w", err)
	}
	mounts, err := nsInode(s.opts.Proc + "/" + pid + "/ns/mnt")
	for ; err == nil && pid != "0" && pid != "1"; pid, err = parentOf(s.opts.Proc + "/" + pid) {
		var inode uint64
		if inode, err = nsInode(s.opts.Proc + "/" + pid + "/ns/mnt"); err == nil && inode != mounts {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("looking at those that started this process: %w", hint(err))
	}
	return errOwnProcess1
}

// parentOf returns the parent of a process; that of one whose parent is not seen
// is 0.
func parentOf(dir string) (string, error) {
	_, fields, err := status(dir)
	if err != nil {
		return "", err
	}
	return fields[1], nil
}

// status returns what a process or thread runs, and the fields of its status
// after that: state, parent and so on (proc(5), /proc/<pid>/stat).
func status(dir string) (comm string, fields []string, err error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return "", nil, err
	}
	// The second field is in brackets and may hold anything, brackets included.
	if end := strings.LastIndex(string(text), ") "); end >= 0 {
		_, comm, _ = strings.Cut(string(text[:end]), "(")
		fields = strings.Fields(string(text[end+1:]))
	}
	if len(fields) < 20 {
		return "", nil, fmt.Errorf("%s/stat: %q is not the status of a process", dir, text)
	}
	return comm, fields, nil
}
