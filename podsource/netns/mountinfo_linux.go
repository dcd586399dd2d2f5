// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// A namespaceMount is the mount of a network namespace.
type namespaceMount struct {
	inode uint64
	point string // absolute
}

// namespaceMounts returns all mounts of network namespaces in a mountinfo file
// (proc(5)), or an error (R2).
//
//	36 24 0:4 net:[4026532255] /run/netns/web rw shared:9 - nsfs nsfs rw
func namespaceMounts(text []byte) ([]namespaceMount, error) {
	var mounts []namespaceMount
	for line := range bytes.Lines(text) {
		before, after, ok := bytes.Cut(line, []byte(" - "))
		if !ok {
			return nil, fmt.Errorf("%q is not a mount", line)
		}
		if !bytes.HasPrefix(after, []byte("nsfs ")) {
			continue
		}
		fields := strings.Split(string(before), " ") // a mount point may contain other white space
		if len(fields) < 5 {
			return nil, fmt.Errorf("%q is not a mount", line)
		}
		number, isNet := strings.CutPrefix(fields[3], "net:[")
		if !isNet {
			continue
		}
		inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
		point := unescape(fields[4])
		if err != nil || !strings.HasPrefix(point, "/") {
			return nil, fmt.Errorf("%q is not the mount of a network namespace", line)
		}
		mounts = append(mounts, namespaceMount{inode, point})
	}
	return mounts, nil
}

// unescape decodes the kernel's escapes of space, tab, newline and backslash: \040.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
