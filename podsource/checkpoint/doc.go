// SPDX-License-Identifier: Apache-2.0

// Package checkpoint is an agent's own durable record of the attachments that
// it has made, as a pod source. It needs neither an API server nor a runtime.
//
// An agent that serves CNI records an attachment as the last step of ADD and
// forgets it as the last step of DEL, each with one atomic commit: after a crash
// the file holds the old state or the new one. So a reservation without a record
// belongs to an ADD that never ended or to a DEL that got as far as its release,
// and a record without a reservation to a DEL that comes again.
//
//	networks := []string{"podnet"} // those of which the agent serves every ADD
//	record, err := checkpoint.Open(path, checkpoint.Options{Networks: networks}) // the only writer
//	...
//	err = record.Backfill(ctx, runtime, attachmentsOf) // who exists, and is not recorded
//	...
//	source := podsource.Union(record, runtime)
//	reconciler, err := gc.New(store, networks, source, gc.Options{})
//	...
//	report, err := reconciler.AtStartup(ctx, gc.NoADDInFlight)
//	...
//	listen() // and from here on record.Add ends an ADD, record.Remove ends a DEL
//
// Where there is no file, Pods is [podsource.ErrNotHere], and Add refuses: a record
// that began with one attachment would say that there is no other.
// [Checkpoint.Backfill] writes the first file. Whoever does not write the record
// reads it with [New].
//
// # What it answers
//
// Of Options.Networks, and of no other network, the record says who lives: it
// names each container, whatever its ID looks like, from the end of its ADD on.
// So the claims of pods that are starting end, with [gc.NoADDInFlight] the hook
// releases whatever the age (R4, R5), and an answer without anybody is one (R9). An
// agent that serves only some of the ADDs of a network must not name it there.
// There is one pod for each attachment, whose addresses are claimed in the
// attachment's network alone, also where that is not among Options.Networks.
//
// A record of an earlier boot of the node is empty. Left out is what is surely
// dead: an entry whose network namespace was seen mounted at its path when it was
// recorded, and of which now that path is gone, or holds another namespace, in the
// very directory in which it was recorded. So a DEL that never came is a leak like
// any other, and [Checkpoint.Prune] forgets it. What can't be checked counts as live:
// no path, a path through /proc (its process may have ended before its namespace),
// one that can't be reached, one in another directory of that name, and any path on
// other systems than Linux.
//
// # What it cannot see
//
//   - Who was attached while nobody kept the record, as by a version of the agent
//     that has none (hazard 51), or by its predecessor until the first start (hazard
//     52). Of what was reserved then it does not speak: it is kept until a runtime
//     beside the record would have listed its container, or [Checkpoint.Backfill] has
//     asked one, or the node boots. Nobody tells the record of a rollback, so that is
//     the whole time since its last change, or since it was closed.
//   - Containers that the source of a Backfill could not mean, as those of nerdctl
//     beside a runtime: of what was reserved in the time that it told of, the record
//     speaks of containers of the source's form alone (hazard 49).
//   - The leak of an ADD that died with its agent, in the time before: it looks the
//     same (hazard 24). An agent that writes down what it is about to do, as
//     examples/cniserver, undoes it by itself.
//   - Namespaces that are not mounted in its own view of the node. Where it sees none
//     of those that were recorded, and not their directory either, that is
//     [podsource.ErrIncomplete], and nothing is released (hazard 50): the hostPath is
//     missing, or its mounts are not passed on. An attachment whose directory was
//     removed after its container ended is forgotten with its DEL, or by a Remove.
//   - Before Linux 6.18, that a namespace ended when another one at its path has got
//     its inode number. The entry counts as live as long as that one is there.
//   - That a finished or evicted pod's address is still up when Backfill asks: what
//     has been finished for five minutes has no attachment (hazard 61).
//   - What another CNI server, or a person with a CNI plugin, attached in its networks.
//   - That a container ended whose DEL got lost, where its namespace can't be checked:
//     its entry counts as live until the boot.
//   - A clock that was set between two readings and set back before the record is
//     opened.
//
// # When the file is not what it should be
//
// A file with another format is [ErrVersion], a damaged one [ErrCorrupt]: a
// checksum tells. Neither is ever overwritten, nor is it guessed what it meant.
// An agent that goes on without the record must not serve ADDs. To start anew, a
// person moves the file away, and the next start falls back as the first one
// did. Do so also to begin with a new format. A field that this version does not
// know is damage, too: it would be lost with the next change, so whoever adds
// one raises the version.
//
// Keep the file where it survives the agent's restart, but not in host-local's
// data dir: the plugin reads every file there. Beside it stand a lock, with
// ".lock" added to its name, which is never removed, and for the time of a
// commit a file with ".tmp" added. Both the record and that file need their
// room: on a full disk Add and Remove are errors, and the old state stands.
//
// [gc.NoADDInFlight]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/gc#NoADDInFlight
package checkpoint
