// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzDecode checks that Decode returns either a list or an error, that the list matches the text,
// and that it does not panic.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`[]`, `null`, ``, `[{}]`, `[{"name":"a"},{"name":"b"}]`, `[{"ips":["10.0.0.2","fd00::2"],"containerIDs":["abc"]}]`,
		`[{"namespace":"shop","name":"web-1","uid":"1","startedAt":"2026-01-01T00:00:00Z","finishedAt":null,"hostNetwork":true}]`,
		`[{"network":"podnet","ips":["10.0.0.2"],"moreIPs":true,"finished":true}]`, `[{"network":"../podnet"}]`,
		`[{"ip":"10.0.0.2"}]`, `[{"ips":["10.0.0.256"]}]`, `[{"ips":["10.0.0.2"]`, `[{"ips":["10.0.0.2"]}] []`, `[{"name":"a","name":"b"}]`,
		`[{"startedAt":"yesterday"}]`, `[{"hostNetwork":"true"}]`, `[{"ips":[""]}]`, `[[[[[[`, "[{\"name\":\"\xff\"}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		pods, err := Decode(text)
		if err != nil {
			if pods != nil {
				t.Errorf("an error, and %d pods beside it", len(pods))
			}
			return
		}
		var items []map[string]any
		if err := json.Unmarshal(text, &items); err != nil {
			t.Fatalf("Decode takes what is no JSON array of objects: %v", err)
		}
		if len(items) != len(pods) {
			t.Fatalf("%d pods of %d objects", len(pods), len(items))
		}
		for i, p := range pods {
			for _, ip := range p.IPs {
				if !ip.IsValid() {
					t.Errorf("pod %d has an address that is none", i)
				}
			}
			if ips, _ := items[i]["ips"].([]any); len(ips) != len(p.IPs) {
				t.Errorf("pod %d has %d addresses of %d", i, len(p.IPs), len(ips))
			}
			if name, _ := items[i]["network"].(string); name != p.Network {
				t.Errorf("pod %d has its addresses in network %q of %q", i, p.Network, name)
			}
			if ids, _ := items[i]["containerIDs"].([]any); len(ids) != len(p.ContainerIDs) {
				t.Errorf("pod %d has %d containers of %d", i, len(p.ContainerIDs), len(ids))
			}
		}
		if again, err := Decode(bytes.TrimSpace(text)); err != nil || len(again) != len(pods) {
			t.Errorf("without white space around it is another list: %v", err)
		}
	})
}
