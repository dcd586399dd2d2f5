// SPDX-License-Identifier: Apache-2.0

package teeth

// A guard is a piece of code that a safety rule rests on, and what is left of
// the code without it.
type guard struct {
	rule, guard   string
	file          string // in the module
	code, without string
}

var guards = []guard{
	{"R1", "reservations are listed before the source is asked", "gc/reconciler.go",
		"	report.SourceDuration = time.Since(asked)\n", "	report.SourceDuration = time.Since(asked)\n	w.here, w.siblings = network{}, nil\n	_ = r.list(ctx, &w)\n"},
	{"R1", "what is read is the file that was listed", "hostlocal/owners.go", "case r.ino != now.ino:", "case false:"},
	{"R1", "without a minimum age owners are read before the source is asked", "gc/reconciler.go", " || w.minAge < time.Second {", " {"},
	{"R2", "an error of the source ends the pass", "gc/ask.go", "		if a.err != nil {\n			return nil,", "		if false {\n			return nil,"},
	{"R2", "one item that can't be right is an error of the list", "gc/ask.go", "a.err = checkPods(a.pods)", "_ = checkPods(a.pods)"},
	{"R3", "a live container's reservation is in use", "gc/view.go", "if pod, ok := v.byID.pod(r.ContainerID); ok {", "if pod, ok := v.byID.pod(r.ContainerID); ok && false {"},
	{"R3", "a live pod's address is in use", "gc/view.go", "		if p.HostNetwork {\n			continue", "		if true {\n			continue"},
	{"R3", "a sibling of an address in use is in use", "gc/decide.go", "kin.inUse[r.ContainerID]; ok {", "kin.inUse[r.ContainerID]; ok && false {"},
	{"R3", "siblings in other networks count", "gc/decide.go", "for n := range w.siblings {", "for n := range w.siblings[:0] {"},
	{"R3", "owners in use are read before a leak with an owner is released", "gc/reconciler.go", "	if len(leaks) == 0 {\n", "	if true {\n"},
	{"R3", "an owner that can't be read may be a sibling", "gc/decide.go", "		k.unreadable = true\n", "		k.unreadable = false\n"},
	{"R3", "an owner that changed meanwhile may be a sibling", "gc/decide.go", "	case hostlocal.Vanished:\n		k.changed = k.changed || !named\n", "	case hostlocal.Vanished:\n"},
	{"R4", "a starting pod keeps what was made since its start", "gc/decide.go", "if !r.ReservedAt.Before(s.since.Add(-grain)) {", "if false {"},
	{"R4", "... also in the tick of the clock in which it started", "gc/decide.go", "s.since.Add(-grain)", "s.since"},
	{"R4", "a start that is unknown keeps everything", "gc/decide.go", "return judgement{PodStartUnknown, s.pod}", "continue"},
	{"R4", "a start in the future is unknown", "gc/clock.go", "start.IsZero() || start.After(now.wall)", "start.IsZero()"},
	{"R4", "a start in a time that the clock showed twice is unknown", "gc/clock.go", "return start.Before(c.twiceFrom) || start.After(c.twiceTo)", "return true"},
	{"R5", "what is young is kept", "gc/decide.go", "age < w.minAge {", "age < 0 {"},
	{"R5", "ages are taken before the source is asked", "gc/reconciler.go", "	w.view = newView(", "	w.at = now\n	w.view = newView("},
	{"R5", "a time in the future says no age", "gc/clock.go", "return !stamp.After(at.wall) && ", "return "},
	{"R5", "a time from before a step of the clock says no age", "gc/clock.go", " && !stamp.Before(c.sound)", ""},
	{"R5", "the clock is looked at after the answer, too", "gc/reconciler.go", "	now := read()\n	r.clock.observe(now)\n", "	now := read()\n"},
	{"R5", "the clock is looked at from the start on", "gc/reconciler.go", "	r.clock.observe(at)\n	return r\n", "	return r\n"},
	{"R5", "the first sight is remembered", "gc/clock.go", "	c.sightings = still\n", "	_ = still\n"},
	{"R6", "a file is compared with what was judged before it is removed", "hostlocal/release.go", "	same, err := d.holds(r, buf)\n", "	same, err := true, error(nil)\n"},
	{"R6", "... also one of which the owner is not read again", "hostlocal/release.go", "		return r.is(now), err\n", "		return true || r.is(now), err\n"},
	{"R7", "only canonical names are reservations", "hostlocal/reservation.go", "if string(ip.AppendTo(buf[:0])) != name {", "if string(ip.AppendTo(buf[:0])) == \"\" {"},
	{"R7", "only regular files are reservations", "hostlocal/dir_linux.go", "t != syscall.DT_REG && t != syscall.DT_UNKNOWN", "t == 255"},
	{"R8", "nothing is released without the lock", "hostlocal/release.go", "unlock, err := s.lock(ctx)", "unlock, err := func() error { return nil }, error(nil)"},
	{"R8", "whoever gives up lets go of the lock in the end", "hostlocal/lock.go", "				_ = l.Close() // unlocks; nobody is left to hear of an error\n", ""},
	{"R8", "the wait for the lock ends with the context", "hostlocal/lock.go", "	case <-done:\n		return nil, fmt.Errorf(\"waiting for the lock of %s: %w", "	case <-make(chan struct{}):\n		return nil, fmt.Errorf(\"waiting for the lock of %s: "},
	{"R8", "no single hold lasts long", "hostlocal/release.go", "maxHold = 2 * time.Millisecond", "maxHold = time.Hour"},
	{"R9", "an empty view is refused", "gc/reconciler.go", "if len(pods) == 0 && !r.opts.AllowEmpty {", "if false {"},
	{"R9", "a required pod must be in the list", "podsource/combine.go", "if !slices.ContainsFunc(pods,", "if false && !slices.ContainsFunc(pods,"},
	{"R10", "a live pod with another container is a conflict", "gc/decide.go", "	case named:\n", "	case false:\n"},
	{"R10", "what else an owner in conflict holds is kept", "gc/decide.go", "kin.disputed[r.ContainerID]; ok {", "kin.disputed[r.ContainerID]; ok && false {"},
	{"R10", "two live pods with one address are a conflict", "gc/decide.go", "rival != nobody {", "rival == -2 {"},
	{"R10", "two entries about one pod are no conflict", "gc/view.go", "		return p.NamespacedName != q.NamespacedName\n", "		return true\n"},
	{"R11", "what was not released is not reported so", "gc/reconciler.go", "	case hostlocal.Changed:\n		return FileChanged\n", "	case hostlocal.Changed:\n		return ReleasedLeak\n"},
	{"R12", "what somebody else removed first is done, and no error", "hostlocal/release.go", "	if errors.Is(err, fs.ErrNotExist) {\n		return Gone, nil\n	}\n	if errors.Is(err, errNotRegular)", "	if errors.Is(err, errNotRegular)"},
	{"R13", "a panic of the source is an error", "gc/ask.go", "if p := recover(); p != nil {", "if p := error(nil); p != nil {"},
	{"R13", "a pass ends with its context, whatever the source does", "gc/ask.go", "	case <-done:\n		return nil, fmt.Errorf(\"asking the pod source: %w\"", "	case <-make(chan struct{}):\n		return nil, fmt.Errorf(\"asking the pod source: %w\""},
	{"12", "a pod that has finished long ago holds nothing", "gc/view.go", "c.since(at, p.FinishedAt) >= finishedFor", "false"},
	{"13", "a pod that has just finished is live", "gc/view.go", "c.since(at, p.FinishedAt) >= finishedFor", "true"},
	{"13", "... for as long without a minimum age", "gc/options.go", "	if o.MinAge <= 0 {\n		return DefaultMinAge", "	if o.MinAge <= 0 {\n		return 0"},
	{"14", "an empty file is nobody's", "gc/decide.go", "		leak = EmptyOwner\n", "		return judgement{OwnerMalformed, nobody}\n"},
	{"15", "owner files of every version are read", "hostlocal/reservation.go", "bytes.Cut(content, []byte{'\\n'})", "bytes.Cut(content, []byte(\"\\r\\n\"))"},
	{"16", "what is no owner is nobody's leak", "gc/decide.go", "	case hostlocal.Malformed:\n		return judgement{OwnerMalformed, nobody}\n", "	case hostlocal.Malformed:\n"},
	{"16", "a long file is not an owner", "hostlocal/reservation.go", "if len(content) > maxOwner {", "if false {"},
	{"28", "addresses of pods in the node's network claim nothing", "gc/view.go", "		if p.HostNetwork {\n			continue", "		if false {\n			continue"},
	{"28", "a pod in the node's network is not a starting one", "gc/view.go", " && !p.HostNetwork {", " {"},
}
