// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// begin is the start time of the scenarios in this file.
var begin = time.Unix(1_700_000_000, 0)

// figures are metrics that do not come from a pass, by the names that rules use.
type figures map[string]float64

const (
	isUp    = `up{instance="node-1", job="hostlocal-gc"}`
	dryRun  = `hostlocal_gc_dry_run{instance="node-1"}`
	agentIs = `hostlocal_gc_build_info{instance="node-1", version="v1"}`
	desired = `kube_daemonset_status_desired_number_scheduled{daemonset="hostlocal-gc", namespace="kube-system"}`
	ready   = `kube_daemonset_status_number_ready{daemonset="hostlocal-gc", namespace="kube-system"}`
)

// usual are the metrics of a node with an agent that releases.
var usual = figures{isUp: 1, dryRun: 0, agentIs: 1, desired: 1, ready: 1}

// A pass is one that ended in a minute of a scenario.
type pass struct {
	report gc.Report
	err    error
}

// Each scenario consists of a node's passes, with a scrape each minute. Prometheus's own engine
// says when each alert fires, and no other alert may fire.
func TestAlerts(t *testing.T) {
	good := func(now time.Time) pass { return pass{report(now, gc.ContainerLive, gc.ReleasedLeak), nil} }
	refused := func(now time.Time) pass {
		p := pass{report(now, gc.SourceFailed), errRefused}
		p.report.Sources[0].Error = errAway.Error()
		return p
	}
	misnamed := func(now time.Time) pass {
		p := pass{report: report(now)}
		p.report.Networks[0].Missing = true
		return p
	}
	unreserved := func(now time.Time, n int) pass {
		p := good(now)
		p.report.Unreserved = slices.Repeat([]gc.Unreserved{{IP: netip.MustParseAddr("10.1.0.9")}}, n)
		return p
	}
	duplicate := func(now time.Time) pass {
		p := good(now)
		p.report.Duplicates = make([]gc.Duplicate, 1)
		return p
	}
	reserved := func(now time.Time, n int) pass {
		p := pass{report: report(now)}
		for i := range n {
			e := entry(now, gc.ContainerLive, time.Hour)
			e.IP = netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)})
			p.report.Reservations = append(p.report.Reservations, e)
		}
		return p
	}
	every11 := func(m int) bool { return m%11 == 0 } // the longest interval that jitter makes of 10 minutes
	backoff := func(m int) bool { return slices.Contains([]int{0, 1, 2, 4, 8, 16}, m) || m > 16 && (m-16)%11 == 0 }
	failing := func(now time.Time) pass { return pass{report(now, gc.ReleaseFailed), errAway} }
	holds := func(now time.Time, why gc.Reason, age time.Duration) pass {
		p := pass{report: report(now, gc.ContainerLive)}
		p.report.Reservations = append(p.report.Reservations, entry(now, why, age))
		return p
	}
	conflict := func(now time.Time, why gc.Reason) pass { return pass{report(now, why), nil} }
	// Passes come every 11 minutes: those of first until the given minute, and then good ones.
	until := func(minute int, first func(now time.Time) pass) func(int, time.Time) []pass {
		return func(m int, now time.Time) []pass {
			if m < minute {
				return only(every11(m), first(now))
			}
			return only(every11(m), good(now))
		}
	}
	healthy := until(0, nil)
	between := func(from, to int, f figures) func(int) figures {
		return func(m int) figures {
			if m < from || m >= to {
				return usual
			}
			return f
		}
	}

	alerts := rules(t)
	silent := make(map[string]bool) // alerts that fired and ended in a scenario
	for _, row := range []struct {
		reason string
		at     func(minute int, now time.Time) []pass
		beside func(minute int) figures // usual if nil
		length int                      // in minutes; 4 hours if 0
		want   map[string]string        // by alert: the minutes in which it fires
	}{
		{
			reason: "a healthy node, with passes as far apart as they get",
			at:     healthy,
		}, {
			reason: "the source comes up a few minutes after the agent",
			at: func(m int, now time.Time) []pass {
				if m < 5 {
					return only(backoff(m), refused(now))
				}
				return only(every11(m-5), good(now))
			},
		}, {
			reason: "the source never answers",
			at:     func(m int, now time.Time) []pass { return only(backoff(m), refused(now)) },
			want:   map[string]string{"HostlocalGCNoGoodPass": "31-", "HostlocalGCPassesRefused": "31-", "HostlocalGCSourceNeverAnswered": "15-"},
		}, {
			reason: "the path of its socket is wrong, and is corrected after an hour",
			at: func(m int, now time.Time) []pass {
				if m < 60 {
					return only(backoff(m), refused(now))
				}
				return only(every11(m-60), good(now))
			},
			want: map[string]string{"HostlocalGCNoGoodPass": "31-60", "HostlocalGCPassesRefused": "31-63", "HostlocalGCSourceNeverAnswered": "15-60"},
		}, {
			reason: "the source fails and sees no pod by turns",
			at: func(m int, now time.Time) []pass {
				if m%20 < 10 {
					return only(m%10 == 0, refused(now))
				}
				return only(m%10 == 0, pass{report(now, gc.NoPods), errNoPods})
			},
			want: map[string]string{"HostlocalGCNoGoodPass": "31-", "HostlocalGCPassesRefused": "40-"},
		}, {
			reason: "after an hour the source goes away, and comes back after two more",
			at: func(m int, now time.Time) []pass {
				if m < 60 || m >= 180 {
					return only(every11(m), good(now))
				}
				return only(backoff(m-60), refused(now))
			},
			want: map[string]string{"HostlocalGCNoGoodPass": "114-187", "HostlocalGCPassesRefused": "90-189"},
		}, {
			reason: "the agent hangs after an hour: the metrics stay, and nothing comes",
			at:     func(m int, now time.Time) []pass { return only(every11(m) && m < 60, good(now)) },
			want:   map[string]string{"HostlocalGCNoGoodPass": "114-"},
		}, {
			reason: "one failure to release, made good by the next pass",
			at: func(m int, now time.Time) []pass {
				if m == 22 {
					return []pass{failing(now), good(now)}
				}
				return only(every11(m), good(now))
			},
		}, {
			reason: "a file that can't be removed, for two hours",
			at: func(m int, now time.Time) []pass {
				if m < 55 || m >= 175 {
					return only(every11(m), good(now))
				}
				return only(backoff(m-55), failing(now))
			},
			want: map[string]string{"HostlocalGCNoGoodPass": "103-176", "HostlocalGCReleaseFailures": "85-184"},
		}, {
			reason: "a conflict that the next pass does not see any more",
			at: func(m int, now time.Time) []pass {
				if m == 22 {
					return []pass{conflict(now, gc.OtherContainer)}
				}
				return only(every11(m), good(now))
			},
		}, {
			reason: "a conflict that stays",
			at: func(m int, now time.Time) []pass {
				if m < 44 {
					return only(every11(m), good(now))
				}
				return only(every11(m), conflict(now, gc.TwoPods))
			},
			want: map[string]string{"HostlocalGCConflict": "59-"},
		}, {
			reason: "a conflict whose reason changes: a second pod with the address is listed now and then",
			at: func(m int, now time.Time) []pass {
				why := []gc.Reason{gc.TwoPods, gc.OtherContainer}[m/11%2]
				return only(every11(m), conflict(now, why))
			},
			want: map[string]string{"HostlocalGCConflict": "15-"},
		}, {
			reason: "a conflict that stands for 75 minutes, while one pass in eleven is refused",
			at: func(m int, now time.Time) []pass {
				switch {
				case m%11 == 10:
					return []pass{refused(now)}
				case m < 75:
					return []pass{conflict(now, gc.TwoPods)}
				}
				return []pass{good(now)}
			},
			want: map[string]string{"HostlocalGCConflict": "15-75", "HostlocalGCPassesRefused": "40-"},
		}, {
			reason: "somebody removed the directory under running pods, which are then replaced",
			at:     until(110, func(now time.Time) pass { return unreserved(now, 3) }),
			want:   map[string]string{"HostlocalGCUnreserved": "15-110"},
		}, {
			reason: "an ADD was under way when the pods were listed: the next pass sees its reservation",
			at: func(m int, now time.Time) []pass {
				return only(every11(m), unreserved(now, m/11%2))
			},
		}, {
			reason: "the node fills up, and an hour later half of the pods leave",
			at: func(m int, now time.Time) []pass {
				return only(every11(m), reserved(now, map[bool]int{true: 10, false: 5}[m < 66]))
			},
			want: map[string]string{"HostlocalGCRangeNearlyFull": "30-66"},
		}, {
			reason: "nine of ten are reserved, and not more",
			at:     func(m int, now time.Time) []pass { return only(every11(m), reserved(now, 9)) },
		}, {
			reason: "two pods have one address, which no file reserves, until one is deleted",
			at:     until(99, duplicate),
			want:   map[string]string{"HostlocalGCDuplicate": "15-99"},
		}, {
			reason: "the network's name is mistyped, for two hours",
			at:     until(121, misnamed),
			want:   map[string]string{"HostlocalGCDirectoryMissing": "60-121"},
		}, {
			reason: "the network's first pod comes half an hour after the agent",
			at:     until(30, misnamed),
		}, {
			reason: "a pod that takes an hour to come up holds back what was made since",
			at:     until(60, func(now time.Time) pass { return holds(now, gc.PodStarting, now.Sub(begin)) }),
		}, {
			reason: "a pod that never comes up",
			at:     until(1000, func(now time.Time) pass { return holds(now, gc.PodStarting, now.Sub(begin)) }),
			want:   map[string]string{"HostlocalGCLeakHeldBack": "151-"},
		}, {
			reason: "a malformed file, which somebody removes after two hours",
			at:     until(121, func(now time.Time) pass { return holds(now, gc.OwnerMalformed, 1000*time.Hour) }),
			want:   map[string]string{"HostlocalGCLeakHeldBack": "30-121"},
		}, {
			reason: "in a dry run leaks stay, for a day and more, and then it releases",
			at:     until(1507, func(now time.Time) pass { return holds(now, gc.NotTried, now.Sub(begin)) }),
			beside: between(0, 1500, figures{isUp: 1, dryRun: 1, agentIs: 1}), // no kube-state-metrics
			length: 26 * 60,
			want:   map[string]string{"HostlocalGCDryRun": "1440-1500"},
		}, {
			reason: "what a dry run finds for live pods is so all the same",
			at: func(m int, now time.Time) []pass {
				p := unreserved(now, 1)
				p.report.Duplicates = make([]gc.Duplicate, 1)
				return only(every11(m), p)
			},
			beside: between(0, 1000, figures{isUp: 1, dryRun: 1, agentIs: 1}),
			want:   map[string]string{"HostlocalGCUnreserved": "15-", "HostlocalGCDuplicate": "15-"},
		}, {
			reason: "the only agent crashes for an hour and a half: its metrics are stale after 5 minutes",
			at:     healthy,
			beside: between(60, 150, figures{isUp: 0, desired: 1, ready: 0}),
			want: map[string]string{
				"HostlocalGCAgentDown": "75-150", "HostlocalGCAgentsMissing": "90-150", "HostlocalGCNoAgents": "79-150",
			},
		}, {
			reason: "the agent starts again, and is away for five minutes",
			at:     healthy,
			beside: between(60, 65, figures{isUp: 0, desired: 1, ready: 0}),
		}, {
			reason: "another node joins, and can't pull the image for an hour",
			at:     healthy,
			beside: between(60, 120, figures{isUp: 1, dryRun: 0, agentIs: 1, desired: 2, ready: 1}),
			want:   map[string]string{"HostlocalGCAgentsMissing": "90-120"},
		}, {
			reason: "the monitor is not selected any more",
			at:     healthy,
			beside: between(60, 150, nil),
			want:   map[string]string{"HostlocalGCNoAgents": "79-150"},
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			length := cmp.Or(row.length, 4*60)
			stored := scrapeScenario(t, length, row.at, row.beside)
			for _, r := range alerts {
				got := fires(t, stored, length, r.Expr, time.Duration(r.For))
				if got != row.want[r.Alert] {
					t.Errorf("%s fires at %q, want %q", r.Alert, got, row.want[r.Alert])
				}
				silent[r.Alert] = silent[r.Alert] || got != "" && !strings.HasSuffix(got, "-")
			}
			for alert := range row.want {
				if !slices.ContainsFunc(alerts, func(r rulefmt.Rule) bool { return r.Alert == alert }) {
					t.Errorf("there is no alert %s", alert)
				}
			}
		})
	}
	for _, r := range alerts {
		if !silent[r.Alert] {
			t.Errorf("%s fires and ends in no scenario", r.Alert)
		}
	}
}

func only(now bool, p pass) []pass {
	if now {
		return []pass{p}
	}
	return nil
}
