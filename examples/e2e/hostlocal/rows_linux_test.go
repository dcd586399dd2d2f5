// SPDX-License-Identifier: Apache-2.0

package hostlocal

// A row is a sequence of steps for one or more configurations: each alternative of "to", which " | " separates,
// replaces "from" in base. A step is a command, a container ID and variables. PUT writes a file.
type row struct{ reason, from, to, steps, want string } // host-local's results match the expression "want"

const (
	base = `{"cniVersion":"0.4.0","name":"podnet","type":"bridge","ipam":{"type":"hostlocal-gc-ipam","gc":{"nested":true},` +
		`"dataDir":"ROOT/networks","ranges":[[{"subnet":"10.1.0.0/29"}]]}}`
	more, dataDir = `"bridge"`, `"dataDir":"ROOT/networks"`
	ranges, cidr  = `[[{"subnet":"10.1.0.0/29"}]]`, `"10.1.0.0/29"`
	dual          = `[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd01::/125"}]]`

	life  = "ADD a; ADD a; CHECK a; ADD b; ADD c; ADD d; ADD e; ADD f; DEL a; DEL a; ADD g; CHECK a"
	small = "ADD a; ADD a; CHECK a; ADD b; DEL b; DEL a; ADD b; CHECK a" // for few addresses
	wrong = "ADD a; CHECK a; DEL a"
)

// Addresses below 10.1.0.32 and fd01::20 are the container's. No set of two ranges is full: v0.8.7 would not end.
var rows = []row{
	{"addresses in turn", cidr, `"10.1.0.0/29" | "fd01::/125" | "FD01:0::/125","gateway":"FD01::3"`, life, `\.3/29|fd01::[12]/125`},
	{"the start", cidr, `"10.1.0.0/29","rangeStart":"10.1.0.0" | "10.1.0.0/29","rangeStart":"::ffff:10.1.0.1"`, life, `\.[23]/29`},
	{"the end", cidr, `"10.1.0.0/29","rangeEnd":"10.1.0.7" | "10.1.0.0/28","rangeStart":"10.1.0.4","rangeEnd":"10.1.0.8"`, life, `\.[48]/2`},
	{"one address", cidr, `"10.1.0.0/30" | "10.1.0.0/29","rangeStart":"10.1.0.6" | "10.1.0.0/29","rangeEnd":"10.1.0.2"`, small, `no IP addr`},
	{"gateways", cidr, `"10.1.0.0/29","gateway":"10.1.0.6" | "10.1.0.0/29","gateway":"10.9.0.1"`, life, `"gateway": "10.(1.0.6|9.0.1)"`},
	{"ranges of one set", `{"subnet":"10.1.0.0/29"}`, `{"subnet":"10.1.0.0/30"},{"subnet":"10.1.0.8/30"}`, small, `10\.1\.0\.10/`},
	{"sets", ranges, dual + ` | [[{"subnet":"10.1.0.0/29"}],[{"subnet":"10.1.0.8/29"}]]`, life, `10\.1\.0\.10/29|fd01::2/125`},
	{"the second set is full first", ranges, `[[{"subnet":"fd01::/125"}],[{"subnet":"10.1.0.8/30"}]]`, small, `range 1: no IP addresses`},
	{"young addresses", cidr, `"10.9.0.0/30" | "fd09::/126","rangeEnd":"fd09::2"`, "ADD a; ADD b; DEL a; ADD b; ADD c", `no IP addresses`},
	{"addresses may be hidden", more, `"other" | null`, life, `no IP addresses`},
	{"no set", `"ranges":` + ranges, `"subnet":"10.1.0.0/29","gateway":"10.1.0.6","rangeEnd":"10.1.0.2"`, small, `10\.1\.0\.2/29`},
	{"a range besides the sets", `"ranges"`, `"subnet":"10.1.0.8/29","ranges"`, small, `10\.1\.0\.10/29`},
	{"routes, unknown keys", `"ranges"`, `"x":1,"routes":[{"dst":"fd09::/64","gw":"fd01::1"},{"dst":"::/0"}],"ranges"`, wrong, `fd09::/64`},
	{"wrong routes", `"ranges"`, `"routes":[{"dst":"10.9.0.0/160"}],"ranges" | "routes":{},"ranges"`, wrong, `invalid CIDR|cannot unmarshal`},
	{"resolvConf", `"ranges"`, `"resolvConf":"ROOT/a","ranges"`, "PUT a nameserver 10.1.0.1\nsearch b\noptions rotate\n; " + wrong, `rotate`},
	{"wrong resolvConf", `"ranges"`, `"resolvConf":"ROOT/none","ranges" | "resolvConf":"ROOT","ranges"`, wrong, `no such|is a dir`},
	{"data directories", dataDir, `"dataDir":"" | "dataDir":"root/networks" | "dataDir":"ROOT/x/..//networks/"`, small, `networks/podnet`},
	{"a data directory that is a file", dataDir, `"dataDir":"ROOT/file"`, "PUT file x; " + wrong, `not a directory`},
	{"names of networks", `"podnet"`, `"a.b_c-1" | "0"`, wrong, `networks/(a\.b_c-1|0)/lock`},
	{"a file is in the network's place", "", "", "PUT networks/podnet x; " + wrong, `not a directory`},
	{"a directory is in the lock's place", "", "", "PUT networks/podnet/lock/x y; " + wrong, `exit status`},
	{"an owner without interface", "", "", "PUT networks/podnet/10.1.0.2 a; CHECK a; ADD b; DEL a; ADD a", `10\.1\.0\.3/29`},
	{"an owner with another interface", "", "", "PUT networks/podnet/10.1.0.2 a\r\nb; CHECK a; ADD a; DEL a", `10\.1\.0\.3/29`},
	{"an empty file", cidr, `"10.1.0.0/30"`, "PUT networks/podnet/10.1.0.2 ; " + small, `no IP addresses`},
	{"a copy in a subdirectory", "", "", "PUT networks/podnet/old/10.1.0.3 a\r\neth0; CHECK a; ADD a; DEL a", `duplicate allocation`},
	{"the last one was the end", "", "", "PUT networks/podnet/last_reserved_ip.0 10.1.0.6; " + wrong, `10\.1\.0\.2/29`},
	{"the last one is a directory", "", "", "PUT networks/podnet/last_reserved_ip.0/x y; " + wrong, `Error retrieving last reserved ip`},
	{"an address", "", "", "ADD a CNI_ARGS=IP=10.1.0.4; ADD b CNI_ARGS=IP=10.1.0.4; ADD a CNI_ARGS=IP=10.1.0.4; ADD a", `not available`},
	{"a young address", cidr, `"10.9.0.0/29"`, "ADD a CNI_ARGS=IP=10.9.0.4; ADD b CNI_ARGS=IP=10.9.0.4", `10\.9\.0\.4 is not available`},
	{"an address with a prefix", "", "", "ADD a CNI_ARGS=IP=10.1.0.4/24; DEL a CNI_ARGS=IP=10.1.0.4/24", `10\.1\.0\.4/2|invalid`},
	{"an address of one of two sets", ranges, dual, "ADD a CNI_ARGS=IP=fd01::5; ADD b CNI_ARGS=IP=fd01::5; DEL a", `fd01::5/125`},
	{"no such address", "", "", "ADD a CNI_ARGS=IP=10.1.0.1; ADD b CNI_ARGS=IP=10.9.0.1; ADD c CNI_ARGS=IP=x; ADD d CNI_ARGS=IP=", `10.9`},
	{"other arguments", "", "", "ADD a CNI_ARGS=K8S=x; ADD a CNI_ARGS=IP; ADD a CNI_ARGS=IgnoreUnknown=1;K8S=x", `unknown args`},
	{"args", more, `"bridge","args":{"cni":{"ips":["10.1.0.5"]}}`, "ADD a; ADD b; DEL a; ADD b", `10\.1\.0\.5 is not available`},
	{"wrong args", more, `"bridge","args":{"cni":{"ips":"x"}} | "bridge","args":[] | "bridge","args":{"cni":{"ips":["x"]}}`, wrong, `code`},
	{"runtimeConfig.ips", more, `"bridge","runtimeConfig":{"ips":["10.1.0.5/29"]}`, "ADD a; ADD b; DEL a; ADD b", `10\.1\.0\.[52]/29`},
	{"runtimeConfig.ipRanges", more, `"bridge","runtimeConfig":{"ipRanges":[[{"subnet":"10.1.0.16/30"}]]}`, small, `10\.1\.0\.18/30`},
	{"only these", `"ranges":` + ranges + `}`, `"x":1},"runtimeConfig":{"ipRanges":[[{"subnet":"10.1.0.16/30"}]]}`, small, `10\.1\.0\.18/30`},
	{"wrong runtimeConfig", more, `"bridge","runtimeConfig":[] | "bridge","runtimeConfig":{"ipRanges":[{}]}`, wrong, `cannot unmarshal`},
	{"versions of CNI", `"0.4.0"`, `"0.1.0" | "0.2.0" | "0.3.0" | "0.3.1" | "1.0.0" | "" | null`, small, `10\.1\.0\.2/29|incompatible`},
	{"CNI 1.1.0", `"0.4.0"`, `"1.1.0"`, small + "; STATUS x; GC x", `10\.1\.0\.2/29|incompatible`},
	{"unknown versions of CNI", `"0.4.0"`, `"9.9.9" | "0.5.0" | "new" | 1`, wrong + "; STATUS x; GC x", `exit status 1`},
	{"no configuration", base, ` | {"cniVersion": | [] | null | {"name":"podnet"}{} | "" | {} | {"name":"` + "\xff" + `"}`, wrong, `status 1`},
	{"wrong names", `"podnet"`, `null | "" | "../podnet" | "pod net" | "pödnet" | ".podnet" | 1`, wrong, `exit status 1`},
	{"no ipam", `"ipam":{`, `"ipam":null,"x":{ | "ipam":"host-local","x":{ | "ipam":[],"x":{`, wrong, `missing 'ipam' key|cannot unmarshal`},
	{"no ranges", ranges, `null | [] | [[]] | [[],[]] | {} | [{"subnet":"10.1.0.0/29"}]`, wrong, `no IP ranges|empty range|cannot unmarshal`},
	{"overlaps", ranges, `[[{"subnet":"fd00::/9"},{"subnet":"fd00::/8"}]] | [[{"subnet":"fd00::/9"}],[{"subnet":"fd00::/8"}]]`, wrong, "over"},
	{"both families in a set", ranges, `[[{"subnet":"10.1.0.0/29"},{"subnet":"fd01::/125"}]]`, wrong, `mixed address families`},
	{"wrong subnets", cidr, `"10.1.0.0/290" | "10.1.0.0" | "10.1.0.5/29" | "" | 1 | null | "::ffff:10.1.0.0/125"`, wrong, `exit status 1`},
	{"subnets that are too small", cidr, `"10.1.0.0/31" | "10.1.0.0/32" | "fd01::/127" | "fd01::1/128"`, wrong, `too small`},
	{"edges outside", cidr, `"10.1.0.0/29","rangeStart":"10.1.0.9" | "fd01::/99","rangeEnd":"fd01::","rangeStart":"fd01::2"`, wrong, "not in"},
	{"wrong edges", cidr, `"10.1.0.0/29","rangeStart":"x" | "10.1.0.0/29","gateway":1`, wrong, `invalid IP address|cannot unmarshal`},
	{"VERSION", `"0.4.0"`, `"0.4.0" | "9.9.9" | x`, "VERSION x; VERSION x CNI_CONTAINERID=; VERSION x CNI_PATH=", `supportedVersions`},
	{"unknown commands", "", "", "FOO a; add a; ADD,DEL a; ADD a CNI_COMMAND=", `unknown CNI_COMMAND: FOO(.|\n)*host-local plugin`},
	{"no container ID", "", "", "ADD a CNI_CONTAINERID=; CHECK a CNI_CONTAINERID=; DEL a CNI_CONTAINERID=", `\[CNI_CONTAINERID\] missing`},
	{"no interface", "", "", "ADD a CNI_IFNAME=; DEL a CNI_IFNAME=; ADD a CNI_IFNAME= CNI_PATH=; ADD a CNI_PATH=", `\[CNI_IFNAME\] missing`},
	{"no namespace", "", "", "ADD a CNI_NETNS=; ADD a; CHECK a CNI_NETNS=; DEL a CNI_NETNS=", `\[CNI_NETNS\] missing`},
	{"container IDs", "", "", "ADD a/b; ADD ../a; ADD ä; ADD .a; DEL a/b; ADD a.b_c-1", `invalid characters`},
	{"interfaces", "", "", "ADD a CNI_IFNAME=a/b; ADD a CNI_IFNAME=..; ADD a CNI_IFNAME=a234567890123456; DEL a CNI_IFNAME=a:b", `interface`},
	{"two interfaces", "", "", "ADD a; ADD a CNI_IFNAME=b; ADD a CNI_IFNAME=b; DEL a; CHECK a", `"a\\r\\nb"`},
	{"the plugin's own namespace", `"0.4.0"`, `"0.4.0" | "1.1.0"`, "ADD a CNI_NETNS=/proc/self/ns/net; CHECK a", `2/29|incompatible`},
}
