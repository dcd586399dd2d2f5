// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// An intent has all that the server needs to undo an ADD or to complete a DEL. It is on
// the disk before the first step, and removed after the last one.
//
// The record can't replace it, since it has complete attachments only. If the server died
// after plumbing and before recording, the start-up hook would release an address that a
// namespace still has, and nothing would tell where that namespace is.
type intent struct {
	request
	Network string `json:"network"`
	// NetNSID identifies the namespace: another one may be mounted at its path later.
	NetNSID string `json:"netnsID,omitempty"`
}

// intents is a directory with a file for each intent. It is a source of pods.
type intents struct {
	dir      string
	networks []string // the served ones
	takeOver string   // the file of a take-over, in which another server may do an ADD
}

func (in intents) path(k checkpoint.Key) string {
	return filepath.Join(in.dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(k.String()))))
}

// write writes an intent durably, and replaces an earlier one of the same attachment.
func (in intents) write(i *intent) (err error) {
	content, err := json.Marshal(i)
	if err != nil {
		return err
	}
	path := in.path(i.key(i.Network))
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // best effort: the next write truncates it
		return err
	}
	return syncDir(in.dir)
}

// remove removes an intent durably. It is no error if there is none.
func (in intents) remove(k checkpoint.Key) error {
	err := os.Remove(in.path(k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(in.dir)
}

// get returns the intent of an attachment, or nil.
func (in intents) get(k checkpoint.Key) (*intent, error) {
	i, err := in.read(in.path(k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return i, err
}

// all returns all intents. One that can't be read is an error, since its attachment is
// unknown.
func (in intents) all() ([]*intent, error) {
	entries, err := os.ReadDir(in.dir)
	if err != nil {
		return nil, err
	}
	var all []*intent
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue // a crash interrupted write
		}
		i, err := in.read(filepath.Join(in.dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the directory was read
		}
		if err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	return all, nil
}

// read reads an intent. The name of its file is derived from its attachment: an intent of
// another attachment, or of none, is damaged.
func (in intents) read(path string) (*intent, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := new(intent)
	if err = json.Unmarshal(content, i); err == nil && in.path(i.key(i.Network)) != path {
		err = errors.New("its name belongs to another attachment")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the intent %s: %w; it is damaged: end its container and move the file away", path, err)
	}
	return i, nil
}

// Rank orders the intents before the record: an ADD is recorded before its intent is
// removed, so a container without an intent is already in the record (hazard 58).
func (in intents) Rank() podsource.Rank { return podsource.RankADDs }

// Pods are the containers with an unfinished request: their addresses are not leaked.
// Each ADD of this server is among them until it is recorded, so the answer declares that it
// has all ADDs in flight of the served networks, but during a take-over.
func (in intents) Pods(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "intents", Supplementary: true}
	if _, err := os.Lstat(in.takeOver); errors.Is(err, fs.ErrNotExist) {
		a.SeesADDs = in.networks
	}
	all, err := in.all()
	if err != nil {
		return a, err
	}
	for _, i := range all {
		a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{i.ContainerID}, Origin: in.path(i.key(i.Network))})
	}
	return a, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
