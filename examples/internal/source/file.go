// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// maxFile is the most that a list of pods may have. A node's has a few hundred
// KiB; this keeps file:/dev/zero from taking all memory.
const maxFile = 64 << 20

// openFile returns a source that reads a file anew whenever it is asked.
//
// Standard input is read once, when it is first asked, and answers every pass
// of this process.
func openFile(path string, env *Env) (podsource.Source, error) {
	node := (&kubeSource{node: env.Node}).nodeName
	read := func() (podsource.Answer, error) { return readFile(path, node) }
	switch {
	case path == "":
		return nil, errors.New("a path is missing after the colon")
	case path == "-" && env.Stdin == nil:
		return nil, errors.New("there is no standard input to read from")
	case path == "-":
		read = sync.OnceValues(func() (podsource.Answer, error) { return answer(env.Stdin, node) })
	}
	return podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		a, err := read()
		a.Source = "file"
		if err != nil {
			return a, fmt.Errorf("file:%s: %w", path, err)
		}
		return a, nil
	}), nil
}

// readFile reads the file at path. Only its own absence is ErrNotHere, which
// lets the next of several alternatives be asked.
func readFile(path string, node func() (string, error)) (podsource.Answer, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return podsource.Answer{}, fmt.Errorf("%w: %w", podsource.ErrNotHere, err)
	}
	if err != nil {
		return podsource.Answer{}, err
	}
	defer func() { _ = f.Close() }() // nothing was written through it
	return answer(f, node)
}

// answer reads all of r. What it reads was last known to be true when the file
// was modified (R5, hazards 62 and 75), and where r is no regular file, when
// reading began.
func answer(r io.Reader, node func() (string, error)) (podsource.Answer, error) {
	asOf := time.Now()
	if f, ok := r.(fs.File); ok {
		info, err := f.Stat()
		if err != nil {
			return podsource.Answer{}, err
		}
		if info.Mode().IsRegular() {
			asOf = info.ModTime()
		}
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return podsource.Answer{}, err
	}
	if len(text) > maxFile {
		return podsource.Answer{}, fmt.Errorf("longer than %d MiB", maxFile>>20)
	}
	a, err := decode(text, node)
	a.AsOf = asOf
	return a, err
}

// decode reads text in one of three forms, which it tells by how it begins: an
// array of pods, or an object that kubectl or crictl printed.
func decode(text []byte, node func() (string, error)) (podsource.Answer, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return decodePrinted(text, node)
	}
	pods, err := Decode(text)
	return podsource.Answer{Pods: pods}, err
}

// Decode reads a JSON array of pods, as file:PATH does where it has one:
//
//	[{"namespace": "shop", "name": "web-1", "uid": "…", "containerIDs": ["…"],
//	  "ips": ["10.244.1.5"], "startedAt": "2025-03-01T12:00:00Z", "hostNetwork": false}]
//
// Every field may be missing or null, and is not known then. More are
// understood, as in [podsource.Pod]: "finished" and "finishedAt" of a pod that has
// ended for good, "moreIPs" of one that may hold more addresses than "ips", and
// "network", the network that "ips" are in.
//
// It is all or an error (R2): text that ends early or goes on behind the array,
// a field that is unknown or given twice, an address or a time that can't be
// parsed is an error of the whole list. Were it not, a mistyped "ip" would cost
// a pod its address.
func Decode(text []byte) ([]podsource.Pod, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("it is empty; a node without pods is written []")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := expect(dec, '['); err != nil {
		return nil, fmt.Errorf("it must be an array of pods: %w", err)
	}
	pods := []podsource.Pod{}
	for dec.More() {
		p, err := decodePod(dec)
		if err != nil {
			return nil, fmt.Errorf("pod %d: %w", len(pods)+1, err)
		}
		pods = append(pods, p)
	}
	if err := expect(dec, ']'); err != nil {
		return nil, fmt.Errorf("behind pod %d: %w", len(pods), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("there is more after the array, from byte %d on", dec.InputOffset())
	}
	return pods, nil
}

// expect reads the delimiter that must come next.
func expect(dec *json.Decoder, want json.Delim) error {
	got, err := token(dec)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("found %v instead of %v at byte %d", got, want, dec.InputOffset())
	}
	return nil
}

// token reads the next token. That the text ends is never right here.
func token(dec *json.Decoder) (json.Token, error) {
	t, err := dec.Token()
	return t, early(err)
}

func early(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends in the middle")
	}
	return err
}
