// SPDX-License-Identifier: Apache-2.0

// Package checkpoint is an agent's own durable record of the attachments that
// it has made, as a pod source. It needs neither an API server nor a runtime.
//
// An agent that serves CNI records an attachment as the last step of ADD and removes it as the
// last step of DEL, each with one atomic commit. After a crash the file has the old or the new
// state. So a reservation without an entry belongs to an ADD that did not end, or to a DEL whose
// release failed without an error. An entry without a reservation belongs to a DEL that will be
// repeated.
//
//	record, err := checkpoint.Open(path, checkpoint.Options{Networks: networks}) // alone in its directory
//	err = record.Backfill(ctx, runtime, attachmentsOf) // records older attachments
//	reconciler, err := gc.New(store, networks, podsource.Union(record, runtime), gc.Options{})
//	report, err := reconciler.AtStartup(ctx, gc.NoADDInFlight) // releases what is leaked at the start
//	go reconciler.Start(ctx) // releases what leaks later, and what later Backfills free
//	listen() // from now on record.Add ends each ADD, record.Remove ends each DEL
//
// A process that does not write the record reads it with [New].
//
// # What it answers
//
// The record says which containers are live in Options.Networks, and in no other network. It
// names any container, whatever its ID, as soon as its ADD has ended. So it ends
// the claims of starting pods; with [gc.NoADDInFlight] AtStartup releases leaks of any age (R4,
// R5); and an answer without pods is valid (R9). The answer has one pod for each attachment. The
// pod claims its addresses only in the attachment's network, also if that is not in
// Options.Networks.
//
// A record of an earlier boot of the node is empty. An entry is left out if its container has
// certainly ended: its network namespace is not at its path, no process of the node is in it, and
// none sees it mounted anywhere. So an attachment without a DEL becomes a leak like any other, and
// [Checkpoint.Prune] removes its entry. The processes are read only if a recorded namespace is not
// at its path. If they can't be read, all entries count as live, and the answer's Note says why:
// the agent needs hostPID and CAP_SYS_PTRACE, and in a node that is itself a container
// Options.Nested. An entry without a path, as a Backfill adds it, ends with a DEL, a boot, or a
// Backfill from a source that must list its container and does not.
//
// # What it cannot see
//
//   - Attachments made while the record was not kept: by a version of the agent without one
//     (hazard 51), by an ADD of it that ends within Options.Lag after the next start
//     (hazard 93), or by the agent's predecessor before the first start (hazard 52). The record
//     does not speak of reservations of that time. They are kept until a runtime in the same
//     Union would have listed their containers, [Checkpoint.Backfill] has asked a runtime, or
//     the node boots. The record can't notice a rollback, so this is all time since its last
//     change, or since it was closed. It is one time, the gap: of an earlier one that was not
//     closed it is the rest, too.
//   - Containers that the source of a Backfill does not list, such as containers of nerdctl
//     beside a runtime. For reservations of the time before the Backfill the record speaks only
//     of the source's kind of containers (hazard 49).
//   - The leak of an ADD of that time that was killed with its agent: it looks like an
//     attachment (hazard 24). An agent that records its next step, such as examples/cniserver,
//     undoes the ADD by itself.
//   - A namespace that only an open descriptor or a socket keeps, or a mount outside of the roots of
//     all threads that are in its mount namespace: it counts as ended.
//   - The mounts of a mount namespace that has no thread and is kept by a mount, as that of an idle
//     snap of Ubuntu; and other users' processes if /proc is mounted with hidepid. As long as there
//     is one of these, all entries count as live.
//   - Before Linux 6.18, the end of a namespace whose inode number another one has now. The entry
//     counts as live while that one exists.
//   - An address of a finished or evicted pod that is still configured during a Backfill (hazard 61).
//   - Attachments in its networks made by another CNI server, or by a person with a CNI plugin.
//   - A clock that was set between two readings and set back before the record is opened.
//
// # The file
//
// A file with another format or with damage ([ErrVersion], [ErrCorrupt]) is neither overwritten nor
// used in part. An agent that continues without the record must not serve ADDs. To begin a new
// record, also with a new format, a person moves the file away, and the next start is like the first.
//
// Keep the file where it survives a restart of the agent, but not in host-local's data
// directory: the plugin reads every file there. Give it a directory of its own, which the writer
// locks with flock(2), and let nobody else read that (0700): who can do so can lock it, too. During
// a commit there is a file with ".tmp" added to the name. On a full disk Add and Remove return
// errors, and the old state remains.
//
// [gc.NoADDInFlight]: https://pkg.go.dev/github.com/hostlocal-gc/hostlocal-gc/gc#NoADDInFlight
package checkpoint
