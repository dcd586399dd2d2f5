// SPDX-License-Identifier: Apache-2.0

package main

import "os"

// Points between the steps at which the tests kill the server.
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
	startFinished = "start-finished"
	startPruned   = "start-pruned"
	startHooked   = "start-hooked"
)

// failpoint ends the process, as kill -9 does, if the environment variable
// CNISERVER_FAILPOINT names the point.
func failpoint(point string) {
	if os.Getenv("CNISERVER_FAILPOINT") == point {
		die()
	}
}
