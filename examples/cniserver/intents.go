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

// An intent says what the server is about to do, and all it takes to undo or to
// end it. It is on the disk before the first step, and goes after the last one.
//
// The record can't do this: it knows what is complete. An ADD that died after
// its plumbing would leave a namespace with an address that the hook gives back,
// and nobody would know where that namespace is.
type intent struct {
	request
	Network string `json:"network"`
	// NetNSID tells the namespace from another one that is mounted at its path
	// by the time when somebody reads this.
	NetNSID string `json:"netnsID,omitempty"`
}

// intents is a directory with one file for each. It is a source of pods.
type intents struct{ dir string }

func (in intents) path(k checkpoint.Key) string {
	return filepath.Join(in.dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(k.String()))))
}

// write puts an intent on the disk; when it returns nil it outlives a crash.
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
		_ = os.Remove(f.Name()) // the next one makes it anew
		return err
	}
	return syncDir(in.dir)
}

// forget removes an intent. One that is not there is no error.
func (in intents) forget(k checkpoint.Key) error {
	err := os.Remove(in.path(k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(in.dir)
}

// of returns the intent that is left of a key, or nil.
func (in intents) of(k checkpoint.Key) (*intent, error) {
	i, err := in.read(in.path(k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return i, err
}

// all returns what is on the disk. What can't be read is an error: an attachment
// might be forgotten.
func (in intents) all() ([]*intent, error) {
	entries, err := os.ReadDir(in.dir)
	if err != nil {
		return nil, err
	}
	var all []*intent
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue // what a crash left in the middle of write
		}
		i, err := in.read(filepath.Join(in.dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	return all, nil
}

// read reads an intent. Its file is named after its attachment, so one that is
// about another, or about none, is damaged.
func (in intents) read(path string) (*intent, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := new(intent)
	if err = json.Unmarshal(content, i); err == nil && in.path(i.key(i.Network)) != path {
		err = errors.New("it is not about the attachment that its name stands for")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the intent %s: %w; it is damaged: end its container and move it away", path, err)
	}
	return i, nil
}

// Rank has the intents asked before the record: the record is written before the
// intent goes, so whoever is no longer among these is in that already (hazard 58).
func (in intents) Rank() podsource.Rank { return podsource.RankADDs }

// Pods are the containers with which something is under way: nothing that they
// hold is a leak yet. Every ADD of this server is among them until it is recorded. It
// does not declare that it sees the ADDs under way: others serve other networks.
func (in intents) Pods(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "intents", Supplementary: true}
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
