// SPDX-License-Identifier: Apache-2.0

package mutation

import "slices"

// A guard is code that a safety rule depends on, the same code without it, and tests that
// fail without it.
type guard struct {
	rule    string // R1 to R14
	hazards string // numbers from gc/testdata/hazards.txt, separated by spaces; may be empty
	guard   string // a description; "..." continues that of the row before
	tests   string // tests that fail, separated by spaces, in the package of the file or in gc

	file          string // in the module
	code, without string
}

// guards are the guards of all files, in the order of a pass: the disk, the sources, decide,
// and the pass itself.
var guards = slices.Concat(diskGuards, sourceGuards, evidenceGuards, decideGuards, startingGuards, podGuards, clockGuards, passGuards, loopGuards)

var diskGuards = []guard{
	{"R1", "03 46", "a file that was replaced has another identity", "TestReleaseCompares", "hostlocal/dir_linux.go",
		"identity{st.Ino, st.Ctim.Nano(), st.Size}", "identity{0, 0, st.Size}"},
	{"R3", "22", "a network that can't be listed is an error of the whole listing", "TestBadDirectory", "hostlocal/list.go",
		"				return Listing{}, linkError(path)\n", "				continue\n"},
	{"R11", "97", "a regular file in the place of a network's directory is told", "TestHazard97FileInPlaceOfADirectory", "hostlocal/list.go",
		"			l.NotDirs = append(l.NotDirs, e.Name())\n", ""},
	{"R7", "17", "a link without the name of a network is not followed", "TestHazard17LinkAsNetwork", "hostlocal/list.go",
		"		case !validName(e.Name()):\n", ""},
	{"R7", "17", "a zone does not lead out of the directory", "TestReleaseCompares", "hostlocal/release.go",
		"case r.IP.Zone() != \"\" || ", "case "},
	{"R11", "30", "a context's error is not taken for that of a missing file", "TestHazard118ReleaseAfterItsContext", "hostlocal/release.go",
		"if err := ctx.Err(); err != nil {\n				return err\n			}\n			err = d.remove(w.rs[i])\n",
		"if err = ctx.Err(); err == nil {\n				err = d.remove(w.rs[i])\n			}\n"},
	{"R13", "118", "nothing is removed if the context ended while a file was compared", "TestHazard118ReleaseAfterItsContext",
		"hostlocal/release.go",
		"if err := ctx.Err(); err != nil {\n				return err\n			}\n			err = d.remove", "err = d.remove"},
	{"R8", "47", "a release does not give up after one replacement of the lock", "TestHazard47LockIsReplacedUnderAPass",
		"hostlocal/release.go",
		"!errors.As(q.err, new(retryError))", "!errors.Is(q.err, errLockBusy) && !errors.Is(q.err, errUnfinished)"},
	{"R6", "09", "a file is compared with the judged one before it is removed", "TestHazard09ReplacedBetweenJudgingAndDeleting", "hostlocal/release.go",
		"	if now.identity != r.identity || owner", "	if id, ifName, owner = []byte(r.ContainerID), []byte(r.IfName), r.Owner; owner"},
	{"R6", "09", "... by its identity", "TestReleaseCompares", "hostlocal/release.go",
		"now.identity != r.identity ||", ""},
	{"R6", "09", "... and by its owner", "TestReleaseCompares", "hostlocal/release.go",
		" || owner != r.Owner || string(id) != r.ContainerID || string(ifName) != r.IfName {", " || string(owner)+string(id)+string(ifName) == \"?\" {"},
	{"R7", "17", "only canonical names are reservations", "TestHazard17ForeignFiles", "hostlocal/reservation.go",
		"string(ip.AppendTo(buf[:0])) == text &&", "string(ip.AppendTo(buf[:0])) != \"\" &&"},
	{"R7", "17", "only regular files are reservations", "TestHazard17ForeignFiles", "hostlocal/dir_linux.go",
		"st.Mode&syscall.S_IFMT != syscall.S_IFREG", "false"},
	{"R7", "17", "... in a listing, too", "TestHazard17ForeignFiles", "hostlocal/dir_linux.go",
		"ok && (kind == syscall.DT_REG || kind == syscall.DT_UNKNOWN && d.stat(&Reservation{IP: ip}))", "ok && kind < 255"},
	{"R7", "17", "... and where the file system reports no types", "TestHazard17ForeignFiles", "hostlocal/dir_linux.go",
		" && d.stat(&Reservation{IP: ip})", ""},
	{"R3", "22", "a file whose type is unknown is listed", "TestHazard17ForeignFiles", "hostlocal/dir_linux.go",
		"return err != nil || info", "return err == nil && info"},
	{"R7", "17", "no link is followed in the place of a network's directory", "TestHazard17LinkInPlaceOfNetwork", "hostlocal/dir_linux.go",
		"syscall.O_DIRECTORY|syscall.O_NOFOLLOW", "syscall.O_DIRECTORY"},
	{"R7", "17", "no link is followed in the place of a file", "TestHazard17ForeignFiles", "hostlocal/dir_linux.go",
		"flags |= syscall.O_NOFOLLOW |", "flags |= 0 |"},
	{"R8", "18", "nothing is released without the lock", "TestHazard18LockIsHeld", "hostlocal/lock_linux.go",
		"	if errors.Is(err, syscall.EWOULDBLOCK) {\n", "	if errors.Is(err, syscall.EWOULDBLOCK) {\n		return nil\n"},
	{"R8", "18", "the wait for the lock ends with the context", "TestHazard18LockIsHeld", "hostlocal/release.go",
		"		case <-ctx.Done():\n", "		case <-context.Background().Done():\n"},
	{"R13", "18", "... or after a time limit of its own", "TestHazard18LockIsHeld", "hostlocal/release.go",
		"idle == maxIdle || ", ""},
	{"R8", "18", "a single hold is short", "TestHazard18APassHoldsTheLock", "hostlocal/release.go",
		"maxHold = 2 * time.Millisecond", "maxHold = time.Hour"},
	{"R8", "47", "before each removal the lock is checked to be the directory's", "TestHazard47LockIsReplacedUnderAPass", "hostlocal/release.go",
		"if err := lock.check(); err != nil {", "if err := error(nil); err != nil {"},
	{"R8", "47", "... and after it was taken", "TestHazard47LockReplacedBeforeLocking", "hostlocal/lock_linux.go",
		"err), l.check())\n", "err))\n"},
	{"R11", "68 30", "an error about one file does not hide the others", "TestRefused", "hostlocal/list.go",
		"			r.Owner, r.Err = Unreadable, ", "			r.Owner, r.Err = \"\", "},
	{"R11", "68", "an unreadable file is not taken for gone if its path leads nowhere", "TestHazard68UnreadableInARenamedDirectory",
		"hostlocal/list.go",
		"			d.stat(&r) // also", "			if d.stat(&r); r.ReservedAt.IsZero() {\n				continue\n			} // also"},
	{"R3", "", "a list that was cut short is an error, even if the context has none", "TestListEndsWithItsContext", "hostlocal/list.go",
		"cmp.Or(ctx.Err(), context.Canceled)", "cmp.Or(ctx.Err(), nil)"},
	{"R12", "29 30", "a file that another process removed first is no error", "TestHazard29TwoCollectors", "hostlocal/release.go",
		"case errors.Is(err, fs.ErrNotExist): // also", "case false: // also"},
	{"R3", "15", "owner files of every version are read", "TestHazard15OwnerFilesOfEveryVersion", "hostlocal/reservation.go",
		"bytes.Cut(content, []byte(\"\\n\"))", "bytes.Cut(content, []byte(\"\\r\\n\"))"},
	{"R7", "16", "a long file is not an owner", "TestHazard16Garbage", "hostlocal/reservation.go",
		"if len(content) > maxOwner {", "if false {"},
	{"R7", "16", "an invalid container ID is not an owner", "TestHazard16Garbage", "hostlocal/reservation.go",
		"if !validName(id) || ", "if "},
}

var sourceGuards = []guard{
	{"R2", "07", "an error of one member is an error of the union", "TestUnion", "podsource/union.go",
		"		return whole, err\n", "		return whole, nil\n"},
	{"R2", "41", "Fallback does not replace a source that exists and is not ready", "TestHazard41NotReadyIsHere", "podsource/union.go",
		"if !errors.Is(notHere, ErrNotHere) {", "if notHere == nil {"},
	{"R2", "41", "a union with a member that is not here is not one that is not here", "TestHazard41NotReadyIsHere", "podsource/union.go",
		"if errors.Is(err, ErrNotHere) { // of", "if false { // of"},
	{"R1", "72 58", "sources are asked by their rank", "TestRank", "podsource/union.go",
		"return cmp.Compare(a.rank, b.rank)", "return 0"},
	{"R1", "72 58", "... also those of a union in a union", "TestRank", "podsource/union.go",
		"members, _ := s.(union)", "var members union"},
	{"R1", "72 58", "... and a fallback no later than its second choice", "TestRank", "podsource/union.go",
		"min(rankOf(first), rankOf(then))", "rankOf(first)"},
	{"R1", "72 58", "... with all members of a union", "TestRank", "podsource/union.go",
		"return u[0].rank", "return u[len(u)-1].rank"},
	{"R2", "37", "an answer from after the end of the context is an error", "TestHazard37AnswerAfterTheEnd", "podsource/union.go",
		"} else if late != nil {", "} else if false {"},
	{"R13", "64", "a panic of a source is an error", "TestHazard64SourceFails", "podsource/union.go",
		"if p := recover(); p != nil {", "if p := error(nil); p != nil {"},
	{"R13", "64", "a source that ends its goroutine is an error", "TestHazard64SourceFails", "podsource/union.go",
		"		err := fmt.Errorf(\"%s ended its", "		err := error(nil)\n		_ = fmt.Errorf(\"%s ended its"},
	{"R13", "64", "a call ends with its context even if the source does not", "TestHazard64SourceHangs", "podsource/union.go",
		"	case <-ctx.Done():\n		return Answer{}, fmt.Errorf(\"%s: %w",
		"	case <-make(chan struct{}):\n		return Answer{}, fmt.Errorf(\"%s: %w"},
	{"R13", "64", "a source that hangs is not called again", "TestHazard64SourceHangs", "podsource/union.go",
		"busy: make(chan struct{}, 1)", "busy: make(chan struct{}, 99)"},
	{"R2", "", "a source that is nil is an error", "TestMisuse", "podsource/union.go",
		"	if s == nil {\n", "	if false {\n"},
	{"R9", "", "Require and AllowEmpty are for a member, not for a union", "TestMisuse", "podsource/union.go",
		"slices.ContainsFunc(a.Parts, func(p Answer) bool { return !p.Supplementary })", "false"},
	{"R9", "06", "a required pod must be in the list", "TestRequire", "podsource/union.go",
		"p.NamespacedName == pod && !p.HasFinished()", "true"},
	{"R9", "43", "... and must not have finished", "TestRequire", "podsource/union.go",
		"p.NamespacedName == pod && !p.HasFinished()", "p.NamespacedName == pod"},
	{"R14", "49", "a kind of IDs is matched whole", "TestKindHas", "podsource/answer.go",
		"len(containerID) == 64 && strings", "strings"},
}
