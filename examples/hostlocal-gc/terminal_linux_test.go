// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// A screen is a pseudo terminal, with the command's end.
type screen struct {
	end, master *os.File
	done        chan error // receives the error that ended the reading
	text        bytes.Buffer
}

// written closes the terminal and returns the output.
func (s *screen) written(t *testing.T) string {
	t.Helper()
	_ = s.end.Close()
	if err := <-s.done; err != nil && !errors.Is(err, syscall.EIO) { // EIO is the end of a terminal
		t.Error(err)
	}
	return strings.ReplaceAll(s.text.String(), "\r\n", "\n")
}

// terminal makes a terminal of the given width.
func terminal(t *testing.T, width uint16) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: width}); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	s := &screen{end: end, master: master, done: make(chan error, 1)}
	go func() {
		_, err := io.Copy(&s.text, master)
		s.done <- err
	}()
	return s
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[mK]|\r")

func TestColoursAndWidth(t *testing.T) {
	n, _ := every(t)
	for _, row := range []struct {
		reason string
		width  uint16
		env    string
		colour bool
	}{
		{"a narrow terminal", 80, "", true},
		{"a wide one", 160, "", true},
		{"no colours wanted", 80, "NO_COLOR=1", false},
		{"no colours to be had", 160, "TERM=dumb", false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			s := terminal(t, row.width)
			cmd := command(t, n.dir, "list", "--data-dir", "networks", "--source", "file:pods.json")
			cmd.Env = append(cmd.Env, row.env)
			cmd.Stdout = s.end
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			got := s.written(t)
			if colour := strings.Contains(got, "\x1b[35mleaked\x1b[0m"); colour != row.colour || strings.Contains(got, "\x1b") != row.colour {
				t.Errorf("colours: %v, want %v:\n%q", colour, row.colour, got)
			}
			plain := escapes.ReplaceAllString(got, "")
			for line := range strings.Lines(plain) {
				if columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > int(row.width) {
					t.Errorf("%d columns on a terminal of %d: %q", columns, row.width, line)
				}
			}
		})
	}
}
