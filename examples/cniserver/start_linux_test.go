// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// logged has a server of this process log to lines, and calls each with each line.
func logged(s *server, lines *[]string, each func(line string)) {
	s.log = funcr.New(func(_, args string) { *lines = append(*lines, args); each(args) }, funcr.Options{})
}

// startMessages are the errors that a start logs and that do not end it, in their order.
var startMessages = []string{"Asking the record", "Finishing an interrupted request", "Forgetting attachments", "Could not release leaked addresses"}

// A start goes on after these errors, and logs each of them. When its context ends, its
// further steps fail.
func TestStartLogsItsErrors(t *testing.T) {
	for _, row := range []struct {
		reason   string
		closed   bool   // whether the record is
		ends     string // the message at which the context ends
		messages []string
		errs     []error // of the messages
		asked    string  // the delegate's commands
	}{
		{"the record fails", true, "none", startMessages[:3], []error{fs.ErrClosed, errors.New("no DEL today"), fs.ErrClosed}, "DEL\nDEL\n"},
		{
			"the time is over before requests are finished", true, startMessages[0], startMessages,
			[]error{fs.ErrClosed, context.Canceled, context.Canceled, context.Canceled}, "",
		},
		{
			"the time is over before attachments are forgotten", false, startMessages[1], startMessages[1:],
			[]error{errors.New("no DEL today"), context.Canceled, context.Canceled}, "DEL\n",
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			fails, asked := n.failing()
			cnitest.Write(t, fails, "DEL", 0)
			cnitest.Write(t, asked, "", 0)
			s := n.newServer()
			for _, id := range []string{"a", "b"} {
				if err := s.intents.write(&intent{request: *n.request("DEL", id), Network: "one"}); err != nil {
					t.Fatal(err)
				}
			}
			if row.closed {
				if err := s.record.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if row.ends != "none" {
				n.reserve("one", "10.9.1.2", "leaked") // so that the pass has something to read
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var lines []string
			logged(s, &lines, func(line string) {
				if strings.Contains(line, row.ends) {
					cancel()
				}
			})
			if err := s.start(ctx, nil); err != nil {
				t.Error(err)
			}
			for i, message := range row.messages {
				if !slices.ContainsFunc(lines, func(line string) bool {
					return strings.Contains(line, message) && strings.Contains(line, row.errs[i].Error())
				}) {
					t.Errorf("no message %q with the error %q in:\n%s", message, row.errs[i], strings.Join(lines, "\n"))
				}
			}
			if got, err := os.ReadFile(asked); err != nil || string(got) != row.asked {
				t.Errorf("the delegate is asked for %q, %v; want %q", got, err, row.asked)
			}
			if left, err := s.intents.all(); err != nil || len(left) != 2 {
				t.Errorf("%d intents are left, %v", len(left), err)
			}
		})
	}
}

// A start logs each attachment that it forgets.
func TestStartLogsWhatItForgets(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	for _, id := range []string{"a", "b"} {
		n.Make(id)
		if _, err := s.handle(t.Context(), n.request("ADD", id)); err != nil {
			t.Fatal(err)
		}
		n.Remove(id)
	}
	var lines []string
	logged(s, &lines, func(string) {})
	if err := s.start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range lines {
		if _, of, ok := strings.Cut(line, `"containerID"=`); ok && strings.Contains(line, "Forgot an attachment") {
			got = append(got, of[:3])
		}
	}
	if diff := cmp.Diff([]string{`"a"`, `"b"`}, got); diff != "" || len(s.record.Entries()) > 0 {
		t.Errorf("recorded are %v; logged (-want +got):\n%s", s.record.Entries(), diff)
	}
}

// Without the source, or the file of the take-over, there is no first record.
func TestFirstRecordFails(t *testing.T) {
	n := newNode(t)
	s, err := n.serveOptions().newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.record.Close() })
	n.reserve("three", "10.9.3.2", "x") // in a network that is not served
	n.reserve("one", "10.9.1.2", "a")
	n.reserve("two", "10.9.2.2", "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hangs := filepath.Join(n.dir, "cri")
	l, err := net.Listen("unix", hangs)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // a runtime that never answers
		if c, err := l.Accept(); err == nil {
			cancel()
			defer c.Close()
			<-t.Context().Done()
		}
	}()
	if err := os.MkdirAll(filepath.Join(n.recordFile()+".tmp", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	noTakeOver := takeOver{s, filepath.Join(n.dir, "none", "taking-over")}
	for _, row := range []struct {
		reason   string
		ctx      context.Context
		existing []string
		takeOver takeOver
		dataDir  string
		want     string
	}{
		{"an unknown kind of source", t.Context(), []string{"guess"}, s.takeOver, n.dataDir(), "guess"},
		{"the take-over can't be noted", t.Context(), []string{n.runtimeLists("[]")}, noTakeOver, n.dataDir(), "noting when the take-over began"},
		{"the source does not answer in time", ctx, []string{"cri:unix://" + hangs}, s.takeOver, n.dataDir(), context.Canceled.Error()},
		{"no source is given, and the reservations can't be listed", t.Context(), nil, s.takeOver, "/dev/null", "/dev/null"},
		{"no source is given, and there are reservations", t.Context(), nil, s.takeOver, n.dataDir(), "network one has reservations, 2 with"},
		{"no source is given, and the record can't be written", t.Context(), nil, s.takeOver, filepath.Join(n.dir, "none"), n.recordFile()},
	} {
		s.takeOver, s.store = row.takeOver, hostlocal.New(row.dataDir)
		if err := s.start(row.ctx, row.existing); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want %q", row.reason, err, row.want)
		}
		if cnitest.Exists(n.recordFile()) {
			t.Fatalf("%s: there is a record", row.reason)
		}
	}
}

// A start whose context ends before it has asked the record fails, since it is unknown
// whether there is one.
func TestStartEndsBeforeTheRecordIsAsked(t *testing.T) {
	s := newNode(t).newServer()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.start(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// An endedContext has ended, which those derived from it do not notice.
type endedContext struct{ context.Context }

func (endedContext) Err() error { return context.Canceled }
