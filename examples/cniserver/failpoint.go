// SPDX-License-Identifier: Apache-2.0

package main

import "os"

// The points between the steps, at each of which the tests kill the server.
const (
	addIntended   = "add-intended"
	addPlumbed    = "add-plumbed"
	addRecorded   = "add-recorded"
	addDone       = "add-done"
	delIntended   = "del-intended"
	delUnplumbed  = "del-unplumbed"
	delReleased   = "del-released"
	delForgotten  = "del-forgotten"
	delDone       = "del-done"
	gcBegun       = "gc-begun"
	gcDetached    = "gc-detached"
	gcReconciled  = "gc-reconciled"
	gcForwarded   = "gc-forwarded"
	startBackfill = "start-backfilled"
	startSettled  = "start-settled"
	startPruned   = "start-pruned"
	startHooked   = "start-hooked"
)

// at is where the tests let the server die, as by kill -9: it is the one at
// which the environment variable CNISERVER_FAILPOINT points.
func at(point string) {
	if os.Getenv("CNISERVER_FAILPOINT") == point {
		die()
	}
}
