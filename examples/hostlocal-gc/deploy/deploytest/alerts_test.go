// SPDX-License-Identifier: Apache-2.0

package deploytest

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// begin is when the stories of this file begin, and how long they go on.
var begin = time.Unix(1_700_000_000, 0)

const length = 4 * 60 // minutes

// A pass is what ended in a minute of a story.
type pass struct {
	report gc.Report
	err    error
}

// Stories of a node, as what its passes report, a scrape each minute, and
// Prometheus's own engine: which alert fires at which minute, and no other at all.
func TestAlerts(t *testing.T) {
	good := func(now time.Time) pass { return pass{report(now, gc.ContainerLive, gc.ReleasedLeak), nil} }
	refused := func(now time.Time) pass { return pass{report(now, gc.SourceFailed), errRefused} }
	misnamed := func(now time.Time) pass {
		p := pass{report: report(now)}
		p.report.Networks[0].Missing = true
		return p
	}
	every11 := func(m int) bool { return m%11 == 0 } // the longest that jitter makes of 10
	backoff := func(m int) bool { return slices.Contains([]int{0, 1, 2, 4, 8, 16}, m) || m > 16 && (m-16)%11 == 0 }
	failing := func(now time.Time) pass { return pass{report(now, gc.ReleaseFailed), errAway} }
	holds := func(why gc.Reason, age func(now time.Time) time.Duration) func(now time.Time) pass {
		return func(now time.Time) pass {
			p := pass{report: report(now, gc.ContainerLive)}
			p.report.Reservations = append(p.report.Reservations, entry(now, why, age(now)))
			return p
		}
	}
	since := func(now time.Time) time.Duration { return now.Sub(begin) }

	alerts := rules(t)
	for _, row := range []struct {
		reason string
		at     func(minute int, now time.Time) []pass
		want   map[string]int // the minute at which each alert fires first
	}{
		{
			"a healthy node, with passes as far apart as they get",
			func(m int, now time.Time) []pass { return only(every11(m), good(now)) },
			nil,
		}, {
			"the source comes up a few minutes after the agent",
			func(m int, now time.Time) []pass {
				if m < 5 {
					return only(backoff(m), refused(now))
				}
				return only(every11(m-5), good(now))
			},
			nil,
		}, {
			"the source never answers",
			func(m int, now time.Time) []pass { return only(backoff(m), refused(now)) },
			map[string]int{"HostlocalGCNoGoodPass": 31, "HostlocalGCPassesRefused": 31},
		}, {
			"the source fails and sees no pod by turns",
			func(m int, now time.Time) []pass {
				if m%20 < 10 {
					return only(m%10 == 0, refused(now))
				}
				return only(m%10 == 0, pass{report(now, gc.NoPods), errNoPods})
			},
			map[string]int{"HostlocalGCNoGoodPass": 31, "HostlocalGCPassesRefused": 40},
		}, {
			"after an hour the source goes away",
			func(m int, now time.Time) []pass {
				if m < 60 {
					return only(every11(m), good(now))
				}
				return only(backoff(m-60), refused(now))
			},
			map[string]int{"HostlocalGCNoGoodPass": 114, "HostlocalGCPassesRefused": 90},
		}, {
			"the agent hangs after an hour: the metrics stay, and nothing comes",
			func(m int, now time.Time) []pass { return only(every11(m) && m < 60, good(now)) },
			map[string]int{"HostlocalGCNoGoodPass": 114},
		}, {
			"one failure to release, made good by the next pass",
			func(m int, now time.Time) []pass {
				if m == 22 {
					return []pass{failing(now), good(now)}
				}
				return only(every11(m), good(now))
			},
			nil,
		}, {
			"a file that can't be removed, from the first hour on",
			func(m int, now time.Time) []pass {
				if m < 55 {
					return only(every11(m), good(now))
				}
				return only(backoff(m-55), failing(now))
			},
			map[string]int{"HostlocalGCNoGoodPass": 103, "HostlocalGCReleaseFailures": 85},
		}, {
			"a conflict that the next pass does not see any more",
			func(m int, now time.Time) []pass {
				if m == 22 {
					return []pass{{report(now, gc.OtherContainer), nil}}
				}
				return only(every11(m), good(now))
			},
			nil,
		}, {
			"a conflict that stays",
			func(m int, now time.Time) []pass {
				if m < 44 {
					return only(every11(m), good(now))
				}
				return only(every11(m), pass{report(now, gc.TwoPods), nil})
			},
			map[string]int{"HostlocalGCConflict": 59},
		}, {
			"a conflict whose reason changes: a second pod with the address is listed now and then",
			func(m int, now time.Time) []pass {
				why := []gc.Reason{gc.TwoPods, gc.OtherContainer}[m/11%2]
				return only(every11(m), pass{report(now, why), nil})
			},
			map[string]int{"HostlocalGCConflict": 15},
		}, {
			"a conflict that stands for 75 minutes, while one pass in eleven is refused",
			func(m int, now time.Time) []pass {
				switch {
				case m%11 == 10:
					return []pass{refused(now)}
				case m < 75:
					return []pass{{report(now, gc.TwoPods), nil}}
				}
				return []pass{good(now)}
			},
			map[string]int{"HostlocalGCConflict": 15, "HostlocalGCPassesRefused": 40},
		}, {
			"somebody removed the directory under running pods",
			func(m int, now time.Time) []pass {
				p := good(now)
				p.report.Unreserved = make([]gc.Unreserved, 3)
				return only(every11(m), p)
			},
			map[string]int{"HostlocalGCUnreserved": 15},
		}, {
			"the node fills up, and an hour later half of the pods leave",
			func(m int, now time.Time) []pass {
				p := pass{report: report(now)}
				for i := range map[bool]int{true: 10, false: 5}[m < 66] {
					e := entry(now, gc.ContainerLive, time.Hour)
					e.IP = netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)})
					p.report.Reservations = append(p.report.Reservations, e)
				}
				return only(every11(m), p)
			},
			map[string]int{"HostlocalGCRangeNearlyFull": 30},
		}, {
			"two pods have one address, which no file reserves",
			func(m int, now time.Time) []pass {
				p := good(now)
				p.report.Duplicates = make([]gc.Duplicate, 1)
				return only(every11(m), p)
			},
			map[string]int{"HostlocalGCDuplicate": 15},
		}, {
			"an ADD was under way when the pods were listed: the next pass sees its reservation",
			func(m int, now time.Time) []pass {
				p := good(now)
				p.report.Unreserved = make([]gc.Unreserved, m/11%2)
				return only(every11(m), p)
			},
			nil,
		}, {
			"the network's name is mistyped, or nothing was ever reserved in it here",
			func(m int, now time.Time) []pass { return only(every11(m), misnamed(now)) },
			map[string]int{"HostlocalGCDirectoryMissing": 60},
		}, {
			"the network's first pod comes half an hour after the agent",
			func(m int, now time.Time) []pass {
				if m < 30 {
					return only(every11(m), misnamed(now))
				}
				return only(every11(m), good(now))
			},
			nil,
		}, {
			"a pod that takes an hour to come up holds back what was made since",
			func(m int, now time.Time) []pass {
				if m < 60 {
					return only(every11(m), holds(gc.PodStarting, since)(now))
				}
				return only(every11(m), good(now))
			},
			nil,
		}, {
			"a pod that never comes up",
			func(m int, now time.Time) []pass { return only(every11(m), holds(gc.PodStarting, since)(now)) },
			map[string]int{"HostlocalGCLeakHeldBack": 151},
		}, {
			"a malformed file stays for ever",
			func(m int, now time.Time) []pass {
				return only(every11(m), holds(gc.OwnerMalformed, func(time.Time) time.Duration { return 1000 * time.Hour })(now))
			},
			map[string]int{"HostlocalGCLeakHeldBack": 30},
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			stored := tell(t, row.at)
			for _, r := range alerts {
				want, ok := row.want[r.Alert]
				if !ok {
					want = -1
				}
				if got := fires(t, stored, r.Expr, time.Duration(r.For)); got != want {
					t.Errorf("%s fires at minute %d, want %d (-1 is never)", r.Alert, got, want)
				}
			}
			for alert := range row.want {
				if !slices.ContainsFunc(alerts, func(r rulefmt.Rule) bool { return r.Alert == alert }) {
					t.Errorf("there is no alert %s", alert)
				}
			}
		})
	}
}

func only(now bool, p pass) []pass {
	if now {
		return []pass{p}
	}
	return nil
}
