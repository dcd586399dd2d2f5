// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"strings"
)

// kernelBootID reads the kernel's random ID of the current boot, random(4).
func kernelBootID() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(content))
	if id == "" {
		return "", errors.New("it is empty")
	}
	return id, nil
}
